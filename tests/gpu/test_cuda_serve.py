"""``kvd serve --device cuda``: ranks on one GPU, what they take and move, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvd_client import AttachError, Client, attach
from kvd_client.device.cuda.device import CudaDevice
from kvd_client.views import mapping_tensor
from kvd_proto.memory import Lifetime
from tests.e2e.daemon_process import DaemonProcess, serving, wait_until
from tests.e2e.ranks import LAYERS, SIZING, admit
from tests.gpu.gpu_parts import (
    DEADLINE_MS,
    reports_of,
    run_program,
    the_device,
    used_bytes,
)

pytestmark = pytest.mark.gpu

NAN_BYTE = 0xFF
"""Sixteen or thirty-two bits of it are a NaN in every float type that a cache holds."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("kvd") / "run"
    # Every batch draws frontiers back, so that pages move all the time.
    with serving(folder, "--device", "cuda", "--batch-move-units-max", "64") as daemon:
        yield daemon


def attached(daemon: DaemonProcess, group: str, **changes: Any) -> Client:
    arguments: dict[str, Any] = {
        "group": group,
        "declare": LAYERS,
        "sizing": SIZING,
        "deadline_ms": DEADLINE_MS,
        "device": the_device(),
    }
    return attach(daemon.address, **(arguments | changes))


@pytest.mark.case("55")
def test_two_ranks_on_one_gpu_find_every_token_where_the_tables_say(daemon: DaemonProcess) -> None:
    ranks = [
        run_program(
            "tests.gpu.rank_program",
            json.dumps(
                {
                    "address": daemon.address,
                    "group": "pair",
                    "rank": rank,
                    "tp": 2,
                    "seed": 5,
                    "pass_count": 150,
                }
            ),
        )
        for rank in range(2)
    ]
    for report in reports_of(ranks, daemon):
        print(report)
        assert report["mismatches"] == 0
        assert report["checked"] > 5_000
        assert report["moved"] > 50
        begun, submitted, done = report["lanes"]
        assert begun == submitted == done > 150
    wait_until("the group is gone", lambda: daemon.group("pair") is None)


@pytest.mark.case("75", "76", "80")
def test_pages_handed_out_read_zero_and_their_neighbours_are_left_alone(
    daemon: DaemonProcess,
) -> None:
    """Bytes of another geometry, or of a dead model, would be NaN in somebody's attention."""
    client = attached(daemon, "zero")
    plan = client.plan
    arena = mapping_tensor(client.memory, plan.arena_bytes)

    def spoil() -> None:
        arena[plan.sink_bytes :].fill_(NAN_BYTE)

    with client.launch() as step:
        step.submit(spoil)
    with client.batch() as batch:
        batch.processed(step.number)
    admit(client, [1, 2], tokens=8)
    with client.launch() as step:
        step.reads_done()
    client.stream.synchronize(DEADLINE_MS)
    taken = torch.zeros(plan.arena_bytes, dtype=torch.bool, device="cuda")
    for band in plan.bands:
        if band.lifetime is Lifetime.STATE:
            units = client.state_slots([1, 2]).tolist()
        else:
            units = client.page_table(band.name, [1, 2]).values.tolist()
        assert units
        for unit in units:
            taken[unit * band.unit_bytes : (unit + 1) * band.unit_bytes] = True
    assert not bool(arena[taken].any())
    taken[: plan.sink_bytes] = True
    assert bool((arena[~taken] == NAN_BYTE).all())
    assert not bool(arena[: plan.sink_bytes].any())
    client.close()


def test_layers_are_tensors_inside_the_arena(daemon: DaemonProcess) -> None:
    client = attached(daemon, "views")
    for view in client.plan.views:
        tensors = client.views(view.layer_index)
        addresses = [tensor.data_ptr() - client.memory.address for tensor in tensors]
        assert view.offset_bytes in addresses
        assert all(tensor.is_cuda for tensor in tensors)
    key = client.views(0)[0]
    key[3].fill_(1.5)
    torch.cuda.synchronize()
    start = key[3].data_ptr() - client.memory.address
    assert client.memory.read_bytes(start, start + 2) == b"\xc0\x3f"
    client.close()


@pytest.mark.case("103")
def test_memory_comes_back_when_the_last_rank_of_a_group_leaves(
    daemon: DaemonProcess,
) -> None:
    large = {"sizing": SIZING.__class__(budget_bytes=1 << 30, page_tokens=4, context_tokens=64)}
    attached(daemon, "first", **large).close()
    wait_until("the group is gone", lambda: daemon.group("first") is None)
    torch.cuda.synchronize()
    before = used_bytes()
    client = attached(daemon, "again", **large)
    assert used_bytes() > before + (900 << 20)
    client.views(0)
    client.close()
    wait_until("the group is gone", lambda: daemon.group("again") is None)
    wait_until("the memory is free", lambda: used_bytes() < before + (64 << 20))


@pytest.mark.parametrize(
    ("device", "problem"),
    [(None, "the hello names none"), ("GPU-1", "is no GPU of this daemon")],
)
def test_a_rank_elsewhere_is_refused(
    daemon: DaemonProcess, device: str | None, problem: str
) -> None:
    other: CudaDevice | None = None
    if device is not None:

        class Elsewhere(CudaDevice):
            gpu_uuid = device  # type: ignore[assignment]

        other = Elsewhere(the_device().driver)
    with pytest.raises(AttachError, match=problem):
        attached(daemon, "elsewhere", device=other)


def test_a_group_that_is_larger_than_the_gpu_is_refused(daemon: DaemonProcess) -> None:
    from kvd_client.device.cuda.calls import visible_gpus

    if len(visible_gpus()) > 1:
        pytest.skip("where ranks lie is known before they come only where there is one GPU")
    sizing = SIZING.__class__(budget_bytes=20 << 30, page_tokens=4, context_tokens=64)
    with pytest.raises(AttachError, match="on the cuda device for 16 x 1 ranks"):
        attached(daemon, "large", sizing=sizing, tp=16)


def test_the_daemon_says_what_it_serves(daemon: DaemonProcess, tmp_path: Path) -> None:
    assert "device=cuda" in daemon.ready_line
    assert daemon.stats()["daemon"]["device"] == "cuda"
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "libcuda" not in maps
    for pid in daemon.holder_pids:
        if Path(f"/proc/{pid}/cmdline").read_text().find("kvd.hold") >= 0:
            assert "libcuda" not in Path(f"/proc/{pid}/maps").read_text()
