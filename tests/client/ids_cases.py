"""Batches resolved into id buffers, and the same ids read the slow way from the arena's tables."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pytest
import torch

from kvd_client import STANDING, Client
from kvd_client.device_ids import DeviceIterationIds, DeviceRunnerIds
from kvd_client.ids import IterationIds, RunnerIds
from kvd_proto.memory import TablePlan
from tests.client.engine_daemon import CONTEXT_TOKENS, PAGE_TOKENS

TOKENS_MAX: Final = 64
ROWS_MAX: Final = 6
PAGES_MAX: Final = 40
COLUMNS_MAX: Final = 12
BANDS: Final = ("full", "window_8")

WriteIds: TypeAlias = IterationIds | DeviceIterationIds
ReadIds: TypeAlias = RunnerIds | DeviceRunnerIds

FORMS = pytest.mark.parametrize("device", [False, True], ids=["host", "device"])


def write_ids(kv: Client, *, device: bool, **changes: Any) -> WriteIds:
    sizes: dict[str, Any] = {"tokens_max": TOKENS_MAX, "rows_max": ROWS_MAX} | changes
    return DeviceIterationIds(kv, **sizes) if device else IterationIds(kv, **sizes)


def read_ids(kv: Client, *, device: bool, **changes: Any) -> ReadIds:
    sizes: dict[str, Any] = {
        "rows_max": ROWS_MAX,
        "pages_max": PAGES_MAX,
        "columns_max": COLUMNS_MAX,
    }
    sizes |= changes
    return DeviceRunnerIds(kv, **sizes) if device else RunnerIds(kv, **sizes)


def resolve(kv: Client, made: WriteIds | ReadIds, ids: Any) -> None:
    """Launch an empty forward that resolves a batch's ids, and wait for its end."""
    with kv.launch() as step:
        made.resolve(step, ids)
    finish(kv)


def finish(kv: Client) -> None:
    kv.stream.synchronize(5_000)
    with kv.batch() as batch:
        batch.processed(kv.step)


def admit(kv: Client, lengths: dict[int, int]) -> None:
    tokens = list(lengths.values())
    with kv.batch() as batch:
        batch.admit(
            list(lengths),
            prompt_tokens=tokens,
            new_tokens_max=[CONTEXT_TOKENS - count for count in tokens],
            take_tokens=tokens,
        )
        batch.standing(add=list(lengths))


def decode(kv: Client, steps: int = 1) -> None:
    for _ in range(steps):
        with kv.batch() as batch:
            batch.take(STANDING)
            batch.advance(STANDING)


def free(kv: Client, ids: Sequence[int]) -> None:
    with kv.batch() as batch:
        batch.free(ids)


def as_list(buffer: Any) -> list[Any]:
    values: list[Any] = buffer.tolist()
    return values


def address(buffer: Any) -> int:
    return int(buffer.data_ptr() if isinstance(buffer, torch.Tensor) else buffer.ctypes.data)


def table(kv: Client, plan: TablePlan) -> list[list[int]]:
    flat = np.frombuffer(
        kv.memory.buffer, "<i4", plan.row_count * plan.column_count, plan.offset_bytes
    )
    rows: list[list[int]] = flat.reshape(plan.row_count, plan.column_count).tolist()
    return rows


def expected_pages(kv: Client, band: str, request: int) -> list[int]:
    """Read the arena's own tables the slow way."""
    kv.stream.synchronize(5_000)
    pages = -(-int(kv.lengths([request])[0]) // PAGE_TOKENS)
    virtual = table(kv, kv.plan.region.request_table)[int(kv.rows([request])[0])][:pages]
    plan = next(one for one in kv.plan.region.band_maps if one.band == band)
    entries = np.frombuffer(kv.memory.buffer, "<i4", plan.entry_count, plan.offset_bytes)
    return [int(entries[page]) for page in virtual]


def expected_slots(kv: Client, band: str, request: int, new_tokens: int) -> list[int]:
    pages, end = expected_pages(kv, band, request), int(kv.lengths([request])[0])
    return [
        pages[token // PAGE_TOKENS] * PAGE_TOKENS + token % PAGE_TOKENS
        for token in range(end - new_tokens, end)
    ]


def end_to_end(lists: list[list[int]]) -> list[int]:
    return [value for one in lists for value in one]
