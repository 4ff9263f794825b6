"""``kvd serve --device cuda`` without a GPU: the helper is a fake, everything else is real."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from kvd.errors import ServeError
from kvd.serve import cuda_arena
from kvd.serve.gpus import CudaArenas
from kvd_client import AttachError
from kvd_client.device.host.device import HostDevice
from kvd_proto.errors import ErrorCode
from tests.e2e import fake_gpu_helper
from tests.e2e.daemon_process import KVD, DaemonProcess, run_kvd, wait_until
from tests.e2e.fake_gpu_helper import FIRST, FULL, MEMORY_BYTES
from tests.e2e.ranks import SIZING, Ranks, admit

HELPER: Final = ("-P", fake_gpu_helper.__file__)
DAEMON: Final = (
    f"from kvd.serve import gpus\ngpus.HELPER = {HELPER!r}\n"
    + KVD.replace("\nmain()\n", "\ntry:\n    main()\nfinally:\n    ")
    + "print(*sorted({'torch', 'cupy', 'cuda'} & set(sys.modules)), 'modules')\n"
)
"""The command line with the fake helper; it ends by saying which libraries of GPUs it loaded."""


class FakeGpu(HostDevice):
    """A device of host memory that says it is a GPU."""

    def __init__(self, gpu_uuid: str) -> None:
        self._gpu_uuid = gpu_uuid

    @property
    def gpu_uuid(self) -> str:
        return self._gpu_uuid


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    started = DaemonProcess(tmp_path / "run", "--device", "cuda", program=DAEMON)
    try:
        started.wait_ready()
        yield started
    finally:
        started.close()


@pytest.fixture
def arenas() -> Iterator[CudaArenas]:
    made = CudaArenas(None, log=print, helper=HELPER)
    yield made
    made.close()


def test_ranks_attach_and_the_daemon_loads_no_library_of_gpus(daemon: DaemonProcess) -> None:
    with Ranks(daemon.address, "g") as ranks:
        clients = ranks.attach_all(2, changes=[{"device": FakeGpu(FIRST)}] * 2)
        ranks.each(clients, lambda client: admit(client, [1, 2]))
        assert daemon.stats()["daemon"]["device"] == "cuda"
    wait_until("the group is gone", lambda: daemon.group("g") is None)
    assert daemon.process.stdout is not None
    assert daemon.stop() == 0
    assert "device=cuda" in daemon.ready_line
    assert daemon.process.stdout.read().split() == ["modules"]


def test_a_helper_that_left_is_started_again_for_the_next_group(daemon: DaemonProcess) -> None:
    helpers = [pid for pid in daemon.holder_pids if "fake_gpu_helper" in command_of(pid)]
    assert len(helpers) == 1
    os.kill(helpers[0], 9)
    with Ranks(daemon.address, "g") as ranks:
        admit(ranks.attach(device=FakeGpu(FIRST)), [1])


@pytest.mark.case("120")
@pytest.mark.parametrize(
    ("gpu_uuid", "problem"),
    [
        (None, "serves GPUs and the hello names none"),
        ("GPU-1", "'GPU-1' is no GPU of this daemon"),
        (FULL, "cannot be had on .*CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_a_rank_whose_memory_cannot_be_had_is_told_why(
    daemon: DaemonProcess, gpu_uuid: str | None, problem: str
) -> None:
    device = None if gpu_uuid is None else FakeGpu(gpu_uuid)
    with Ranks(daemon.address, "g") as ranks, pytest.raises(AttachError, match=problem):
        ranks.attach(device=device)
    assert daemon.lives()


def test_ranks_on_one_gpu_share_its_memory(daemon: DaemonProcess) -> None:
    sizing = msgspec.structs.replace(SIZING, budget_bytes=MEMORY_BYTES * 3 // 4)
    with Ranks(daemon.address, "g") as ranks:
        started = [
            ranks.start(ranks.attach, rank, tp=2, device=FakeGpu(FIRST), sizing=sizing)
            for rank in range(2)
        ]
        for one in started:
            with pytest.raises(AttachError, match=f"for 2 x 1 ranks, {FIRST} has {MEMORY_BYTES}"):
                one.result(20)


def test_a_gpu_that_is_not_there_stops_the_start() -> None:
    with pytest.raises(ServeError, match="gpu = GPU-1: there is no such GPU") as missing:
        CudaArenas("GPU-1", log=print, helper=HELPER)
    assert missing.value.code is ErrorCode.BAD_SETTING


def test_a_gpu_for_the_host_device_is_a_contradiction(tmp_path: Path) -> None:
    ran = run_kvd("serve", "--runtime-dir", str(tmp_path / "run"), "--gpu", "GPU-1")
    assert ran.returncode != 0
    assert "gpu = GPU-1 goes with device = cuda" in ran.stderr


def test_one_gpu_is_served_if_one_is_named() -> None:
    arenas = CudaArenas(FIRST.removeprefix("GPU-").upper(), log=print, helper=HELPER)
    assert list(arenas.rooms_bytes()) == [FIRST]
    with pytest.raises(ServeError, match="is no GPU of this daemon"):
        arenas.place_of(FULL)
    arenas.close()


def test_memory_is_created_again_and_again_by_one_helper(arenas: CudaArenas) -> None:
    for _ in range(3):
        descriptor = arenas.create("a", 4096, FIRST)
        assert os.fstat(descriptor).st_size == 4096
        os.close(descriptor)


def test_a_helper_that_cannot_start_says_why_and_how_to_help() -> None:
    with pytest.raises(ServeError, match="the helper for CUDA memory did not get ready"):
        CudaArenas(None, log=print, helper=("-c", "pass"))


def test_a_host_without_a_gpu_or_its_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import kvd.serve.cuda_arena as helper; helper.MAKER_MODULE = 'no_such_module'; "
        "helper.main()"
    )
    with pytest.raises(ServeError, match="needs cuda-bindings and a GPU: No module named"):
        CudaArenas(None, log=print, helper=("-c", program))
    assert cuda_arena.MAKER_MODULE == "kvd_client.device.cuda.arena"


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
