"""``kvd replay`` as a user runs it: real daemon, real holder, real rank processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kvd.testing
from kvd.cli.query import fetch_statistics, read_statistics
from kvd.errors import ServeError
from kvd.testing.local import LocalDaemon

KVD = (sys.executable, "-c", "from kvd.cli.main import main; main()")
RUN_WAIT_S = 60
WAIT_S = 60
LOOK_INTERVAL_S = 0.02

# The shipped excerpt with the shortest answers: requests of about 250 tokens, of which the budget
# holds about ten at a time.
EXCERPTS = Path(kvd.testing.__path__[0]) / "excerpts"
SMALL = (
    *("--trace", str(EXCERPTS / "azure_2023_code.csv"), "--tokens-max", "400", "--requests", "24"),
    *("--budget", "40MiB", "--chunk", "128", "--reserve-batches", "0"),
)

# A model of three kinds in an arena of some twelve requests: states at the low end, the window's
# pages floating in the middle, the pages of full attention at the high end. Promises end with the
# batch they are given in, so requests outgrow the arena, and what grows pushes the float about.
CROWDED = (
    *("--preset", "phi-4-mini-flash", "--trace", str(EXCERPTS / "azure_2023_conv.csv")),
    *("--requests", "40", "--budget", "136MiB", "--chunk", "128"),
    *("--reserve-batches", "1", "--idle-every", "20"),
)


Options = tuple[str, ...]


@pytest.fixture(scope="module")
def connect() -> Iterator[Options]:
    """Give the options that lead to a daemon which all tests of this module share."""
    with LocalDaemon() as daemon:
        yield ("--connect", str(daemon.socket_path))
    assert daemon.returncode == 0


def run_replay(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        (*KVD, "replay", *arguments),
        capture_output=True,
        text=True,
        timeout=RUN_WAIT_S,
        check=False,
    )


def replayed(*arguments: str) -> dict[str, Any]:
    """Run a replay that must go well; return its document."""
    done = run_replay(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        found = [int(child) for child in children.read_text().split()]
    except FileNotFoundError:
        return []
    return found + [below for child in found for below in descendants(child)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} within {WAIT_S} s"
        # Nobody sets it: there is no event to wait for when another process gets somewhere.
        threading.Event().wait(LOOK_INTERVAL_S)


class Running(NamedTuple):
    process: "subprocess.Popen[str]"
    socket_path: Path


@contextmanager
def running_replay(*arguments: str) -> Generator[Running, None, None]:
    """Start a long replay and give it once its ranks are attached and at work."""
    with LocalDaemon() as daemon:

        def is_busy() -> bool:
            assert process.poll() is None, process.communicate()
            try:
                groups = read_statistics(fetch_statistics(daemon.stats_path)).groups
            except ServeError:
                return False  # it does not answer yet; who waits has a deadline of its own
            return any(stage.position > 100 for group in groups for stage in group.stages)

        process = subprocess.Popen(
            (*KVD, "replay", "--connect", str(daemon.socket_path), *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                wait_for(is_busy, "ranks are at work")
                yield Running(process, daemon.socket_path)
            finally:
                process.kill()


def ranks_of(process: "subprocess.Popen[str]") -> list[int]:
    return [pid for pid in descendants(process.pid) if "kvd.testing.rank" in command_line(pid)]


@pytest.mark.parametrize("overlap", ["--overlap", "--no-overlap"])
def test_a_replay_serves_every_request_and_finds_every_byte_right(
    connect: Options, overlap: str
) -> None:
    document = replayed(*connect, *SMALL, overlap)

    assert document["schema"] == "kvd.replay/1"
    assert document["requests"] == 24
    assert document["mismatches"] == 0
    assert document["findings"] == []
    assert document["iterations"] > 50
    # The arena is full enough that requests wait for one another.
    assert document["refusals"]["NO_BYTES"] > 0
    assert document["verdicts"]["FITS"] == 24
    # While promises last, whoever was let in gets all that it asked for.
    assert (document["lapsed"], document["takes_refused"], document["retracted"]) == (0, 0, 0)
    assert 0.4 < document["useful_bytes_peak"] / document["arena_bytes"] < 1
    # Two ranks, two bands of 12,288 bytes a token, all written at least once.
    assert document["bytes_written"] == 2 * 2 * 12_288 * document["tokens_written"]
    assert document["bytes_checked"] >= document["bytes_written"]
    assert document["left_units"] == {"window_128": 0, "full": 0}
    # On each rank two maps, the request table and its lengths.
    assert document["tables_checked"] == 2 * 4


@pytest.mark.parametrize("tp", ["1", "2", "4"])
def test_mirrored_and_following_ranks_get_the_same_places(connect: Options, tp: str) -> None:
    options = (*connect, *SMALL, "--requests", "12", "--tp", tp)

    mirrored = replayed(*options, "--mode", "mirrored")
    led = replayed(*options, "--mode", "leader")

    assert len(mirrored["ranks"]) == len(led["ranks"]) == int(tp)
    ranks = [rank for document in (mirrored, led) for rank in document["ranks"]]
    assert len({(rank["position"], rank["places_digest"]) for rank in ranks}) == 1


@pytest.mark.parametrize("mode", ["mirrored", "leader"])
@pytest.mark.parametrize("overlap", ["--overlap", "--no-overlap"])
def test_every_byte_is_right_where_memory_is_rearranged_and_requests_are_retracted(
    connect: Options, overlap: str, mode: str
) -> None:
    document = replayed(*connect, *CROWDED, "--mode", mode, overlap)

    assert document["requests"] == 40
    assert document["mismatches"] == 0
    assert document["findings"] == []
    # What the arena was put through: places found without a move, ends flushed, the float
    # relocated; requests that waited, steps that found no room, victims.
    assert all(document["layouts"][step] > 0 for step in ("no_move", "flush_ends", "relayout"))
    assert document["relief"] == (
        document["layouts"]["flush_ends"] + document["layouts"]["relayout"]
    )
    assert document["relocations"] > 0
    assert all(units > 0 for units in document["moved_units"].values())
    assert document["moved_bytes"] > 0
    assert document["lapsed"] > 0
    assert document["waited"] > 0
    assert document["takes_refused"] > 0
    assert document["retracted"] > 0
    # Retracted requests are admitted once more each, and write again what they had written.
    assert document["verdicts"]["FITS"] == 40 + document["retracted"]
    assert document["tokens_written"] == (document["tokens"] - 40 + document["tokens_recomputed"])


def test_two_kinds_are_served_by_flushing_ends_alone(connect: Options) -> None:
    options = ("--preset", "gpt-oss-20b", "--tokens-max", "1024", "--requests", "60")
    arena = ("--budget", "96MiB", "--page", "16", "--idle-every", "0")

    document = replayed(*connect, *CROWDED, *options, *arena)

    assert document["requests"] == 60
    assert document["findings"] == []
    assert document["layouts"]["flush_ends"] == document["relief"] > 0
    assert document["retracted"] > 0
    # There is no band in the middle.
    assert document["layouts"]["relayout"] == document["relocations"] == 0


@pytest.mark.parametrize(("overlap", "budget"), [("--overlap", "11MiB"), ("--no-overlap", "10MiB")])
def test_answers_are_cut_to_what_an_arena_near_the_floor_can_ever_hold(
    connect: Options, overlap: str, budget: str
) -> None:
    document = replayed(*connect, *SMALL, "--budget", budget, "--chunk", "384", overlap)

    assert document["requests"] == 24
    assert document["clipped"] > 0
    assert document["unschedulable"] == []
    assert document["findings"] == []


def test_prompts_that_no_empty_arena_holds_are_given_up_and_named(connect: Options) -> None:
    document = replayed(*connect, *SMALL, "--budget", "8MiB", "--chunk", "384")

    given_up = document["unschedulable"]
    assert len(given_up) == document["verdicts"]["UNSCHEDULABLE"] > 0
    assert document["requests"] == 24 - len(given_up)
    assert document["findings"] == []


def test_idle_passes_draw_frontiers_back_where_no_take_needs_it(connect: Options) -> None:
    document = replayed(*connect, *SMALL, "--idle-every", "8")

    assert document["idle_iterations"] > 0
    assert document["relief"] == 0
    assert document["moved_bytes"] > 0
    assert document["findings"] == []


@pytest.mark.parametrize(
    "place", ["24:full:0", "12:state:0", "16:window_512:6"], ids=["end", "state", "float"]
)
def test_a_byte_that_changed_after_a_move_fails_the_replay_and_is_named(
    connect: Options, place: str
) -> None:
    # Of these, 28 requests are enough for a page of each band to be moved.
    done = run_replay(*connect, *CROWDED, "--requests", "28", "--corrupt", f"{place}:moved")

    request, band, page = place.split(":")
    assert done.returncode == 1
    assert f"FAILED: mismatch: request {request}, band {band}, page {page} " in done.stdout
    assert "on rank 0" in done.stdout
    assert "never moved" not in done.stdout


def test_a_page_size_of_one_token_is_served(connect: Options) -> None:
    document = replayed(*connect, *SMALL, "--tp", "1", "--page", "1")

    assert document["requests"] == 24


@pytest.mark.parametrize(
    ("preset", "bands"),
    [
        ("phi-4-mini-flash", {"state", "window_512", "full"}),
        ("qwen3-next-80b-a3b", {"state", "full"}),
    ],
)
def test_models_with_state_are_served(connect: Options, preset: str, bands: set[str]) -> None:
    options = (*SMALL, "--requests", "8", "--budget", "1GiB", "--tp", "1", "--preset", preset)

    document = replayed(*connect, *options)

    assert document["requests"] == 8
    assert set(document["left_units"]) == bands


@pytest.mark.parametrize(
    ("corrupt", "named", "options"),
    [
        ("7", "request 7, band full, page 0 ", ()),
        ("9:window_128:1", "request 9, band window_128, page 1 ", ()),
        (
            "2:state",
            "request 2, band state, page 0 ",
            ("--preset", "phi-4-mini-flash", "--budget", "512MiB", "--requests", "4"),
        ),
    ],
)
def test_a_corrupted_byte_fails_the_replay_and_is_named(
    connect: Options, corrupt: str, named: str, options: Options
) -> None:
    done = run_replay(*connect, *SMALL, *options, "--corrupt", corrupt)

    assert done.returncode == 1
    assert done.stdout.count(f"FAILED: mismatch: {named}") == 1
    assert "on rank 0" in done.stdout
    assert "ok:" not in done.stdout


def test_a_corruption_that_never_happens_fails_the_replay(connect: Options) -> None:
    done = run_replay(*connect, *SMALL, "--corrupt", "7:full:60")

    assert done.returncode == 1
    assert "FAILED: page 60 of request 7 in band full was to be corrupted and was" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--budget", "1MiB"), "error: budget_bytes is 1048576, short by "),
        (("--connect", "/no/such.sock"), "error: no daemon answers at /no/such.sock"),
    ],
)
def test_a_replay_that_cannot_attach_says_why_in_one_line(
    connect: Options, options: Options, said: str
) -> None:
    done = run_replay(*connect, *SMALL, *options)

    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_a_killed_rank_fails_the_replay_and_leaves_no_process_behind() -> None:
    with running_replay("--budget", "128MiB") as (process, _):
        ranks = ranks_of(process)
        os.kill(ranks[1], signal.SIGKILL)
        output, complaints = process.communicate(timeout=RUN_WAIT_S)

        assert process.returncode == 1, complaints
        assert f"FAILED: rank 1: Ended: process {ranks[1]} was ended by SIGKILL" in output
        assert f"(process {ranks[1]}) is lost" in output
        assert all(command_line(pid) == "" for pid in ranks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_replay(number: signal.Signals) -> None:
    with running_replay("--budget", "128MiB") as (process, _):
        ranks = ranks_of(process)
        assert len(ranks) == 2
        process.send_signal(number)
        returned = -number if number == signal.SIGKILL else 128 + number
        assert process.wait(WAIT_S) == returned

        wait_for(lambda: all(command_line(pid) == "" for pid in ranks), "ranks are gone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_that_is_ended_leaves_neither_processes_nor_files_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    with subprocess.Popen(
        (*KVD, "trace", "record", "--out", str(tmp_path / "trace.jsonl")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        started: set[int] = set()

        def has_ranks() -> bool:
            assert process.poll() is None, process.communicate()
            started.update(descendants(process.pid))
            return len(started) >= 4  # daemon, holder, two ranks

        wait_for(has_ranks, "the ranks have started")
        assert list(tmp_path.iterdir()) != []
        process.send_signal(number)
        _, complaints = process.communicate(timeout=WAIT_S)

    assert process.returncode == 128 + number, complaints
    wait_for(lambda: all(command_line(pid) == "" for pid in started), "all processes are gone")
    assert list(tmp_path.iterdir()) == []


def test_stats_and_map_show_a_replay_at_work() -> None:
    with running_replay("--budget", "128MiB") as (process, socket_path):
        stats, drawn = (
            subprocess.check_output((*KVD, command, "--socket", str(socket_path)), text=True)
            for command in ("stats", "map")
        )

    for text in (f"group replay-{process.pid}", "TP 2", "grow_down", "mirrored", "batches"):
        assert text in stats
    bar = drawn.splitlines()[1]
    assert bar.startswith("#")
    assert {"W", "F"} <= set(bar)


def test_a_daemon_of_its_own_leaves_neither_processes_nor_files_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        (*KVD, "replay", *SMALL),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        started: set[int] = set()

        def is_over() -> bool:
            started.update(descendants(process.pid))
            return process.poll() is not None

        wait_for(is_over, "the replay is over")
        output, _ = process.communicate()

    assert process.returncode == 0
    assert len(started) >= 4  # daemon, holder, two ranks
    assert all(command_line(pid) == "" for pid in started)
    assert list(tmp_path.iterdir()) == []
    for text in (
        "the first 24 requests of at most 400 tokens",
        "requests served     24 of 24",
        "batch round trip    p50",
        "mismatches          0",
        "window_128",
        "ok: every byte was as written",
    ):
        assert text in output
