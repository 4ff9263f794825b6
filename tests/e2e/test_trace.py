"""Traces of a live daemon: real sockets, the host device, and processes that come and go."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvd.trace.adapter import RecordedAdapter, Script
from kvd.trace.compare import Comparison, compare
from kvd.trace.records import Gap, Head, read_trace
from kvd.trace.stage import StageAdapter
from tests.e2e.daemon_process import DaemonProcess, errors_of, run_kvd, wait_until
from tests.e2e.ranks import Ranks, admit
from tests.e2e.test_serve_survivors import make_value

REPLAY_S = 60.0
SMALL = (
    *("--preset", "phi-4-mini-flash", "--requests", "6", "--tokens-max", "1024"),
    *("--budget", "136MiB", "--chunk", "128", "--reserve-batches", "1", "--idle-every", "20"),
)


def script(path: Path) -> Script:
    return Script(read_trace(path), name=str(path))


def replayed(path: Path) -> Comparison:
    """Play a trace on this build, bit for bit."""
    return compare(
        lambda: script(path), lambda: RecordedAdapter(script(path), name="then"), StageAdapter
    )


@pytest.mark.slow
def test_two_processes_on_a_live_daemon_are_recorded_and_replay_bit_for_bit(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.jsonl"
    recorded = run_kvd("trace", "record", "--out", str(out), "--", *SMALL, timeout_s=REPLAY_S)
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert f"recorded: {out}, " in recorded.stdout
    head = next(read_trace(out))
    assert isinstance(head, Head)
    assert head.start.ranks == (0, 1)
    done = run_kvd("trace", "replay", str(out), "--json", timeout_s=REPLAY_S)
    (run,) = json.loads(done.stdout)["runs"]
    assert run["same"], done.stdout
    assert run["decisions"] > 200
    assert run["position"] == run["decisions"]
    assert run["ending"].endswith("left")


def traces(folder: Path) -> list[Path]:
    """Return the traces of a folder in the order of their incarnations."""
    return sorted(folder.iterdir(), key=lambda path: int(path.name.split("-")[2]))


@pytest.mark.slow
def test_what_survives_an_incarnation_is_what_the_next_ones_trace_begins_with(
    start: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    daemon = start("--trace-dir", str(tmp_path / "t"), "--check-level", "strict")
    with Ranks(daemon.address, "kept") as ranks:
        client = ranks.attach()
        make_value(client)
        client.close()
        again = ranks.attach()
        admit(again, [3, 4])
        with again.batch() as batch:
            batch.evict([7])
        again.close()
        wait_until("both ended", lambda: daemon.log().count("event=incarnation_end") == 2)
    assert daemon.stop() == 0
    first, second = traces(tmp_path / "t")
    head = next(read_trace(second))
    assert isinstance(head, Head)
    assert head.start.survivors is not None
    assert head.start.position > 0
    for path in (first, second):
        result = replayed(path)
        assert result.divergence is None, path
        assert result.ending is not None
        assert result.snap_count == 1


@pytest.mark.slow
def test_a_daemon_that_is_killed_leaves_a_prefix_that_replays(
    start: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    daemon = start("--trace-dir", str(tmp_path / "t"))
    with Ranks(daemon.address, "g") as ranks:
        clients = ranks.attach_all(2)
        ranks.each(clients, lambda client: admit(client, [1, 2, 3]))
        found = daemon.group("g")
        assert found is not None
        daemon.process.kill()
        daemon.wait()
    (path,) = traces(tmp_path / "t")
    result = replayed(path)
    assert (result.divergence, result.complete) == (None, False)
    assert result.position == found["stages"][0]["position"] > 0


@pytest.mark.slow
def test_a_full_trace_says_so_and_the_daemon_serves_on(
    start: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    daemon = start("--trace-dir", str(tmp_path / "t"), "--trace-bytes-max", "1MiB")
    with Ranks(daemon.address, "g") as ranks:
        client = ranks.attach()
        for _ in range(40):
            with client.batch() as batch:
                for _ in range(200):
                    batch.relief((0,) * len(client.plan.bands))
        assert "event=trace_stopped" in daemon.log()
        admit(client, [1])
    (path,) = traces(tmp_path / "t")
    assert path.stat().st_size <= 1 << 20
    *_, last = read_trace(path)
    assert isinstance(last, Gap)
    assert last.reason == "the trace is full: it may have 1048576 bytes"
    assert replayed(path).divergence is None


def test_a_folder_that_cannot_be_written_is_one_error_at_the_start(folder: Path) -> None:
    done = run_kvd("serve", "--runtime-dir", str(folder), "--trace-dir", "/proc/traces")
    assert done.returncode == 2
    (error,) = errors_of(done.stderr)
    assert "trace_dir = '/proc/traces' cannot be written" in error
