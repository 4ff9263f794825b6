"""Ids for kernels over memory that changes: after moves, in stream order, beyond 4 gigabytes."""

import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
import torch

from kvd.build import StageStorage, build_group
from kvd_client import Client, UsageError
from kvd_client.device_ids import device_byte_offsets
from kvd_client.ids import INT32_MAX, byte_offsets
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    LayerView,
    SizingInputs,
    StatePart,
    StateTensor,
)
from tests.client.engine_daemon import PAGE_TOKENS, EngineDaemon
from tests.client.ids_cases import (
    FORMS,
    ReadIds,
    admit,
    as_list,
    decode,
    expected_pages,
    expected_slots,
    finish,
    read_ids,
    resolve,
    write_ids,
)

GiB: Final = 1 << 30


@pytest.fixture
def kv() -> Iterator[Client]:
    with EngineDaemon().attach() as client:
        yield client


# ---- moves ---------------------------------------------------------------------------------------


def relieve(daemon: EngineDaemon, kv: Client) -> None:
    """Ask the owner's band for nearly the whole arena: the window has to give way."""
    full = kv.plan.bands[-1]
    before = daemon.incarnation.engine.chain.statistics()[1].moved_units_total
    room = full.unit_index_end_count - full.unit_index_min
    with kv.batch() as batch:
        batch.relief((0, 0, room - 80))
    moved = daemon.incarnation.engine.chain.statistics()[1].moved_units_total - before
    assert moved > 0


def window_keys(kv: Client) -> torch.Tensor:
    return kv.views(1)[0]


@pytest.mark.case("36")
@FORMS
def test_what_was_written_before_a_forced_move_is_read_after_it(device: bool) -> None:
    daemon = EngineDaemon()
    with daemon.attach() as kv:
        writes, reads = write_ids(kv, device=device), read_ids(kv, device=device)
        admit(kv, {1: 5, 2: 8, 3: 3})
        batch = [3, 1, 2]
        with kv.launch() as step:
            writes.resolve(step, batch)
            step.submit(lambda: write_marks(window_keys(kv), writes.slots("window_8"), count=16))
        finish(kv)
        before = kv.page_table("window_8", batch).values.tolist()

        relieve(daemon, kv)
        resolve(kv, reads, batch)

        pages = as_list(reads.indices("window_8"))[: len(before)]
        assert set(pages).isdisjoint(before)
        assert marks_at(kv, reads, batch) == list(range(1, 17))
        for place, request in enumerate(batch):
            line = expected_pages(kv, "window_8", request)
            assert as_list(reads.block_table("window_8"))[place][: len(line)] == line


@FORMS
def test_the_next_take_after_a_move_writes_into_the_moved_page(device: bool) -> None:
    daemon = EngineDaemon()
    with daemon.attach() as kv:
        made = write_ids(kv, device=device)
        admit(kv, {1: 5})
        before = kv.page_table("window_8", [1]).values.tolist()
        relieve(daemon, kv)
        decode(kv)

        resolve(kv, made, [1])

        (slot,) = as_list(made.slots("window_8"))[:1]
        assert slot == expected_slots(kv, "window_8", 1, 1)[0]
        assert slot % PAGE_TOKENS == 1
        assert slot // PAGE_TOKENS not in before


def write_marks(keys: torch.Tensor, slots: Any, *, count: int) -> None:
    """Do what a kernel would: token i of the batch writes i + 1 at its slot."""
    marks = torch.arange(1, count + 1, dtype=keys.dtype)
    keys[torch.as_tensor(slots)[:count]] = marks[:, None, None].expand(count, *keys.shape[1:])


def marks_at(kv: Client, reads: ReadIds, batch: list[int]) -> list[int]:
    """Do what a kernel would: read every token of the batch through its pages."""
    keys, found = window_keys(kv), list[int]()
    pages, borders = as_list(reads.indices("window_8")), as_list(reads.indptr)
    for place, length in enumerate(kv.lengths(batch).tolist()):
        line = pages[borders[place] : borders[place + 1]]
        for token in range(length):
            slot = line[token // PAGE_TOKENS] * PAGE_TOKENS + token % PAGE_TOKENS
            found.append(int(keys[slot, 0, 0]))
    return found


# ---- stream order and damage ---------------------------------------------------------------------


def test_the_device_reads_tables_behind_the_effects_that_write_them(kv: Client) -> None:
    writes = write_ids(kv, device=True)
    host = write_ids(kv, device=False)
    gate = threading.Event()
    kv.stream.submit(lambda: None if gate.wait(5) else pytest.fail("the gate stayed shut"))
    admit(kv, {1: 6})
    with kv.launch() as step:
        writes.resolve(step, [1])
        host.resolve(step, [1])
        assert not any(as_list(writes.slots("full")))
        assert all(as_list(host.slots("full"))[:6])
        gate.set()
    finish(kv)

    assert as_list(writes.slots("full")) == as_list(host.slots("full"))


def test_what_the_device_resolves_is_there_for_work_enqueued_behind_it(kv: Client) -> None:
    made = write_ids(kv, device=True)
    admit(kv, {1: 6, 2: 3})
    seen: list[list[int]] = []
    gate = threading.Event()
    with kv.launch() as step:
        step.submit(lambda: None if gate.wait(5) else pytest.fail("the gate stayed shut"))
        made.resolve(step, [1, 2])
        step.submit(lambda: seen.append(as_list(made.token_count)))
        assert as_list(made.token_count) == [0]
        gate.set()
    finish(kv)

    assert seen == [[9]]


@pytest.mark.parametrize("stray", [-1, 1 << 30, -(1 << 31)])
def test_a_virtual_page_out_of_range_reads_as_the_sink_on_the_device(
    kv: Client, stray: int
) -> None:
    made = read_ids(kv, device=True)
    admit(kv, {1: 9})
    page = int(kv.virtual_pages([1]).values[1])
    overwrite_place(kv, request=1, place=1, page=stray)

    resolve(kv, made, [1])

    pages = as_list(made.indices("full"))[:3]
    assert pages[1] == 0
    assert all(pages[::2])
    # A client of a strict daemon finds the wrong entry when it leaves.
    overwrite_place(kv, request=1, place=1, page=page)


def test_places_behind_a_rows_end_are_never_read_even_if_they_name_a_bound_page(
    kv: Client,
) -> None:
    made = read_ids(kv, device=True)
    admit(kv, {1: 5, 2: 16})
    overwrite_place(kv, request=1, place=2, page=int(kv.virtual_pages([2]).values[0]))

    resolve(kv, made, [1])

    assert np.count_nonzero(as_list(made.block_table("full"))) == 2
    assert np.count_nonzero(as_list(made.indices("full"))) == 2


def overwrite_place(kv: Client, *, request: int, place: int, page: int) -> None:
    """Write into the arena's request table behind everybody's back."""
    kv.stream.synchronize(5_000)
    plan = kv.plan.region.request_table
    flat = np.frombuffer(
        kv.memory.buffer, "<i4", plan.row_count * plan.column_count, plan.offset_bytes
    )
    flat[int(kv.rows([request])[0]) * plan.column_count + place] = page


# ---- bytes ---------------------------------------------------------------------------------------


def large_storage() -> StageStorage:
    """Return a stage of 12 GiB with pages of 1 MiB and state slots of 16 MiB."""
    attention = AttentionPart(kv_head_count=8, key_element_count=512, value_element_count=512)
    state = StatePart(recurrent=StateTensor(shape=(64, 256, 256), dtype=DType.FLOAT32))
    declared = DeclaredLayers(
        layers=(LayerDecl(parts=(attention,)), LayerDecl(parts=(state,))), context_tokens=256
    )
    sizing = SizingInputs(
        budget_bytes=12 * GiB, page_tokens=64, running_requests_count=4, chunk_tokens=64
    )
    return build_group(declared, inputs=sizing).stages[0]


@pytest.fixture
def large() -> Iterator[Client]:
    """Give a client of that stage; of its memory only what a test writes is ever there."""
    with EngineDaemon(storage=large_storage()).attach() as client:
        yield client


def view_of(kv: Client, role: str) -> LayerView:
    return next(one for one in kv.plan.views if one.role == role)


@pytest.mark.case("45")
@FORMS
@pytest.mark.parametrize("role", ["k", "v", "recurrent"])
def test_the_last_slot_lies_beyond_4_gigabytes_and_is_found_in_64_bits(
    large: Client, role: str, device: bool
) -> None:
    view = view_of(large, role)
    layer = large.views(view.layer_index)[0 if role != "v" else 1]
    last = view.index_end_count - 1
    layer[last].view(-1)[0] = 1.5

    slots = np.array([0, last], dtype=np.int32)
    offsets: Any
    if device:
        offsets = device_byte_offsets(view, torch.as_tensor(slots))
        assert offsets.dtype == torch.int64
    else:
        offsets = byte_offsets(view, slots)
        assert offsets.dtype == np.int64

    first_byte, last_byte = as_list(offsets)
    assert first_byte == view.offset_bytes
    assert last_byte == view.offset_bytes + last * view.index_stride_bytes
    assert last_byte > 1 << 32
    element_bytes = view.dtype.element_bytes
    assert last * view.index_stride_bytes // element_bytes > INT32_MAX
    stored = large.arena_array()[last_byte : last_byte + element_bytes].tobytes()
    assert stored == layer[last].view(-1)[:1].view(torch.uint8).numpy().tobytes()
    assert any(stored)


@FORMS
def test_slots_at_the_top_of_a_large_arena_write_there(large: Client, device: bool) -> None:
    made = write_ids(large, device=device)
    with large.batch() as batch:
        batch.admit([1], prompt_tokens=[2], new_tokens_max=[8], take_tokens=[2])
    keys = large.views(0)[0]

    with large.launch() as step:
        made.resolve(step, [1])
        step.submit(lambda: write_marks(keys, made.slots("full"), count=2))
    finish(large)

    offsets = byte_offsets(view_of(large, "k"), np.array(as_list(made.slots("full"))[:2]))
    assert (offsets > 1 << 32).all()
    for offset, stored in zip(offsets.tolist(), (0x3F80, 0x4000), strict=True):
        assert large.arena_array()[offset : offset + 2].view(np.uint16).tolist() == [stored]


@pytest.mark.parametrize("slot", [-1, 1 << 40])
def test_a_slot_outside_the_view_is_refused(kv: Client, slot: int) -> None:
    view = view_of(kv, "k")
    with pytest.raises(UsageError, match=f"the view has {view.index_end_count}"):
        byte_offsets(view, np.array([1, slot]))
