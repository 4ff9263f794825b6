"""``kvd stats`` and ``kvd map`` against a stand-in for the daemon's read-only socket."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

from kvd.cli.main import cli
from kvd.cli.query import fetch_health, fetch_statistics, read_statistics
from kvd.errors import ServeError
from kvd_proto.codec import decode_header, encode
from kvd_proto.control import ErrorReply, Header, MessageKind

DOCUMENT: dict[str, object] = {
    "schema": "kvd.stats/1",
    "daemon": {"pid": 12, "uptime_s": 3.5, "epoch": 7, "build": "0.1", "new": "ignored"},
    "groups": [
        {
            "name": "demo",
            "tp": 2,
            "pp": 1,
            "incarnation": 1,
            "state": "running",
            "leaving": ["stage 0 rank 1 (process 9): lane 0 began 3 and did 2"],
            "quarantined": [
                {
                    "who": "stage 0 rank 0 (process 8)",
                    "reason": "process 8 lives",
                    "age_s": 61.2,
                    "arena_bytes": 10_000,
                    "stage": 0,
                }
            ],
            "stages": [
                {
                    "stage": 0,
                    "position": 1234,
                    "requests": 3,
                    "arena_bytes": 10_000,
                    "sink_bytes": 100,
                    "log": {"entries": 10, "bytes": 300},
                    "layouts": {"no_move": 6, "flush_ends": 2, "relayout": 0},
                    "bands": [
                        {
                            "name": "full",
                            "kind": "full",
                            "chain_kind": "grow_down",
                            "unit_bytes": 100,
                            "page_tokens": 64,
                            "unit_index_min": 1,
                            "unit_index_end": 100,
                            "span_start": 60,
                            "span_end": 100,
                            "live_units": 30,
                            "hole_units": 10,
                            "promised_units": 4,
                            "hard_fixed": [90, 92],
                            "soft_fixed": [70, 71],
                            "moved_units_total": 4321,
                            "moved_bytes_total": 432_100,
                            "open_uses": 3,
                            "oldest_uses": [
                                {"use": "forward write", "by": "step 7"},
                                {"use": "network send", "by": "transfer 2", "units": 1200},
                            ],
                        }
                    ],
                }
            ],
        }
    ],
    "sessions": [{"rank": 0, "pid": 99}, {"rank": 1, "pid": 98, "following": True}],
    "counters": {"batches": 12345, "errors": {"FENCED": 2}},
}

Answer = Callable[[Header], list[bytes]]


def statistics_answer(header: Header) -> list[bytes]:
    body = DOCUMENT if header.kind is MessageKind.STATS else {"schema": "kvd.health/1"}
    return [encode(Header(kind=header.kind)), json.dumps(body).encode()]


def forbidden_answer(header: Header) -> list[bytes]:
    assert header.kind is MessageKind.STATS
    return [encode(Header(kind=MessageKind.ERROR)), encode(ErrorReply("FORBIDDEN", "not you"))]


@pytest.fixture
def answer() -> Answer:
    return statistics_answer


@pytest.fixture
def socket_path(tmp_path: Path, answer: Answer) -> Iterator[Path]:
    """Answer on the stats socket beside the path until the test is over."""
    path = tmp_path / "kvd.sock"
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{path}.stats")

    def serve() -> None:
        while True:
            try:
                identity, head, _ = router.recv_multipart()
            except zmq.ContextTerminated:
                break
            router.send_multipart([identity, *answer(decode_header(head))])
        router.close(linger=0)

    thread = threading.Thread(target=serve)
    thread.start()
    yield path
    context.term()
    thread.join()


def stats_path(socket_path: Path) -> Path:
    return Path(f"{socket_path}.stats")


def test_statistics_and_health_are_fetched(socket_path: Path) -> None:
    assert json.loads(fetch_statistics(stats_path(socket_path))) == DOCUMENT
    assert json.loads(fetch_health(stats_path(socket_path))) == {"schema": "kvd.health/1"}


def test_a_missing_daemon_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match=f"no daemon answers at {tmp_path}/kvd.sock.stats"):
        fetch_statistics(tmp_path / "kvd.sock.stats")


def test_a_daemon_that_is_silent_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvd.cli.query.ANSWER_WAIT_MS", 20)
    (tmp_path / "kvd.sock.stats").touch()

    with pytest.raises(ServeError, match="no daemon answers"):
        fetch_statistics(tmp_path / "kvd.sock.stats")


@pytest.mark.parametrize("answer", [forbidden_answer])
def test_an_error_of_the_daemon_is_passed_on(socket_path: Path) -> None:
    with pytest.raises(ServeError, match="not you"):
        fetch_statistics(stats_path(socket_path))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"{", "cannot be read"),
        (b'{"schema": "kvd.stats/1"}', "daemon"),
        (json.dumps(DOCUMENT | {"schema": "kvd.stats/2"}).encode(), "are kvd.stats/2"),
    ],
)
def test_a_document_of_another_kind_is_refused(document: bytes, said: str) -> None:
    with pytest.raises(ServeError, match=said):
        read_statistics(document)


def test_stats_prints_the_daemons_document(socket_path: Path) -> None:
    result = CliRunner().invoke(cli, ["stats", "--socket", str(socket_path), "--json"])

    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == DOCUMENT


def test_stats_prints_tables_of_bands_and_sessions(socket_path: Path) -> None:
    result = CliRunner().invoke(cli, ["stats", "--socket", str(socket_path)])

    assert result.exit_code == 0, result.output
    for text in (
        "TP 2",
        "grow_down",
        "[60, 100)",
        "3,000",
        "following",
        "batches",
        "12,345",
        "{FENCED 2}",
    ):
        assert text in result.output


def test_stats_say_whose_memory_is_not_quiet_and_why(socket_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["stats", "--socket", str(socket_path)])

    assert ran.exit_code == 0, ran.output
    assert "not quiet yet: stage 0 rank 1 (process 9): lane 0 began 3 and did 2" in ran.stdout
    assert (
        "in quarantine for 61 s: 10,000 bytes of stage 0 rank 0 (process 8): process 8 lives"
        in ran.stdout
    )


def test_map_draws_every_stage(socket_path: Path) -> None:
    result = CliRunner().invoke(cli, ["map", "--socket", str(socket_path), "--width", "50"])

    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[1] == "#" + "." * 29 + "F" * 15 + "++" + "f" * 3


def test_stats_and_map_say_what_moved_and_what_must_not(socket_path: Path) -> None:
    stats, drawn = (
        CliRunner().invoke(cli, [command, "--socket", str(socket_path)]).output
        for command in ("stats", "map")
    )

    for text in ("stage 0 layouts: no_move 6, flush_ends 2, relayout 0", "[90, 92) ~[70, 71)"):
        assert text in stats
    assert "4,321" in stats
    assert "pages of 100 bytes; 4,321 moved so far" in drawn
    assert "layouts so far: no_move 6, flush_ends 2" in drawn


@pytest.mark.case("62")
def test_stats_name_the_oldest_uses_of_a_band(socket_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["stats", "--socket", str(socket_path)]).output

    assert (
        "  3 uses of full, oldest first: step 7: forward write of any units; "
        "transfer 2: network send of 1,200 units"
    ) in printed.splitlines()


def test_map_prints_stretches_as_json(socket_path: Path) -> None:
    result = CliRunner().invoke(cli, ["map", "--socket", str(socket_path), "--json"])

    document = json.loads(result.output)
    assert document["schema"] == "kvd.map/1"
    assert document["stages"][0]["layouts"] == {"no_move": 6, "flush_ends": 2, "relayout": 0}
    assert document["stages"][0]["bands"] == [
        {
            "name": "full",
            "live_units": 30,
            "hole_units": 10,
            "pending_units": 0,
            "promised_units": 4,
            "hard_fixed": [90, 92],
            "soft_fixed": [70, 71],
            "moved_units_total": 4321,
            "moved_bytes_total": 432_100,
        }
    ]
    assert document["stages"][0]["stretches"][2] == {
        "start_bytes": 6000,
        "end_bytes": 9000,
        "use": "live",
        "band": "full",
    }


@pytest.mark.parametrize("command", ["stats", "map"])
def test_commands_without_a_daemon_exit_with_one_line(tmp_path: Path, command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--socket", str(tmp_path / "kvd.sock")])

    assert result.exit_code == 2
    assert result.output.startswith("error: no daemon answers at ")
    assert result.output.count("\n") == 1


def test_stats_as_json_loads_nothing_heavy(socket_path: Path) -> None:
    script = (
        "import sys\n"
        "from kvd.cli.main import cli\n"
        f"cli(['stats', '--json', '--socket', {str(socket_path)!r}], standalone_mode=False)\n"
        "print(sorted({'numpy', 'rich', 'torch', 'uvloop', 'asyncio'} & set(sys.modules)))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )

    assert done.stdout.splitlines()[-1] == "[]"
