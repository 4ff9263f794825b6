"""A rank killed at every point of its step: told within two seconds, answered throughout."""

import os
import sys
from collections.abc import Iterator
from time import monotonic

import pytest

from kvd_client import Client
from kvd_client.errors import RankLostError
from tests.e2e.daemon_process import DEADLINE_S, DaemonProcess, serving
from tests.e2e.mortal import POINTS
from tests.e2e.rank_program import work
from tests.e2e.ranks import Ranks, admit
from tests.e2e.test_serve_death import TOLD_WITHIN_S, Talker

pytestmark = pytest.mark.slow

WORK_COUNT = 9
"""In the middle of the work: no earlier than the ninth time that a rank comes to its point."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with serving(tmp_path_factory.mktemp("r") / "run", "--check-level", "strict") as running:
        yield running
        assert running.lives()
        assert "internal_error" not in running.log()
        assert "memory_quarantined" not in running.log()


@pytest.fixture(scope="module")
def mortals() -> Iterator[Talker]:
    """Give the process that starts ranks which kill themselves."""
    program = Talker((sys.executable, "-m", "tests.e2e.mortal", str(os.getpid())))
    program.read("ready")
    yield program
    program.end()


@pytest.fixture(scope="module")
def other(daemon: DaemonProcess) -> Iterator[Client]:
    """Give the client of a group that has nothing to do with it all."""
    with Ranks(daemon.address, "other") as others:
        yield others.attach()


def until_told(client: Client) -> float:
    """Work until the incarnation ends; returns when this rank was told."""
    with pytest.raises(RankLostError, match=r"rank 1 .* is lost"):
        work(client, tells=False)
    return monotonic()


@pytest.mark.parametrize("point", [*POINTS, "half_sent"])
def test_a_rank_killed_anywhere_in_its_step_ends_its_incarnation_and_nothing_else(
    daemon: DaemonProcess, mortals: Talker, other: Client, point: str
) -> None:
    group = f"kill-{point}"
    with Ranks(daemon.address, group) as ranks:
        spec = {"address": daemon.address, "group": group, "tp": 2, "rank": 1}
        mortals.tell(spec | {"point": point, "count": WORK_COUNT})
        pid = mortals.read("started")["pid"]
        client = ranks.attach(0, tp=2)
        told = ranks.start(until_told, client)
        slowest_s = 0.0
        while not told.done():
            asked_at = monotonic()
            other.ping()
            slowest_s = max(slowest_s, monotonic() - asked_at)
        told_at = told.result(0)

        assert mortals.read("died")["code"] == -9
        died_at = mortals.read_at
        print(f"{point}: told {1000 * (told_at - died_at):+.1f} ms, ping {1000 * slowest_s:.1f} ms")
        assert told_at - died_at < TOLD_WITHIN_S
        assert slowest_s < TOLD_WITHIN_S
        client.close()

        # Whoever comes next gets the memory without a wait that anybody would notice.
        asked_at = monotonic()
        later = ranks.attach_all(2)
        assert monotonic() - asked_at < DEADLINE_S
        assert [one.incarnation for one in later] in ([1, 1], [2, 2])
        ranks.each(later, lambda one: admit(one, [1]))
        assert f"process {pid}" in daemon.log()
