"""Ranks on a GPU that are killed at work: the others are told, memory comes back, work goes on."""

import json
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.daemon_process import DaemonProcess, serving, wait_until
from tests.gpu.gpu_parts import PROGRAM_S, reports_of, run_program

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.gpu

ENDED_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("kvd") / "run"
    with serving(folder, "--device", "cuda", "--batch-move-units-max", "64") as daemon:
        yield daemon


def start(daemon: DaemonProcess, group: str, *, passes: int) -> "list[subprocess.Popen[str]]":
    spec: dict[str, Any] = {
        "address": daemon.address,
        "group": group,
        "tp": 2,
        "seed": 5,
        "pass_count": passes,
    }
    return [
        run_program("tests.gpu.rank_program", json.dumps(spec | {"rank": rank}))
        for rank in range(2)
    ]


def position(daemon: DaemonProcess, group: str) -> int:
    found = daemon.group(group)
    if found is None or found["state"] != "running":
        return 0
    return int(found["stages"][0]["position"])


@pytest.mark.case("138")
@pytest.mark.parametrize(("victim", "at_position"), [(0, 300), (1, 311), (0, 347), (1, 402)])
def test_a_rank_killed_at_work_ends_the_incarnation_and_the_next_one_finds_its_memory_in_order(
    daemon: DaemonProcess, victim: int, at_position: int
) -> None:
    group = f"killed-{victim}-{at_position}"
    ranks = start(daemon, group, passes=20_000)
    wait_until("both are at work", lambda: position(daemon, group) > at_position, deadline_s=60)
    ranks[victim].kill()
    killed_at = monotonic()
    wait_until("the incarnation ended", lambda: position(daemon, group) == 0)
    ended_s = monotonic() - killed_at
    print(f"ended after {ended_s:.3f} s")
    assert ended_s < ENDED_WITHIN_S
    ranks[1 - victim].communicate(timeout=PROGRAM_S)
    assert ranks[1 - victim].returncode not in (0, None)
    ranks[victim].communicate(timeout=PROGRAM_S)
    again = start(daemon, group, passes=40)
    for report in reports_of(again, daemon):
        assert report["mismatches"] == 0
    wait_until("the group is gone", lambda: daemon.group(group) is None)
    assert "quarantine" not in daemon.log()
