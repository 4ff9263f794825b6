"""``kvd trace`` on files: what it prints, how it exits, and what it refuses in one line."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvd.cli.main import cli
from kvd.trace.records import Res, encode_record
from tests.unit.test_trace_scenario import ADMIT, write
from tests.unit.trace_parts import joined, records, traced


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["trace", *map(str, arguments)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a trace."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(traced())
    return path


@pytest.fixture
def altered(tmp_path: Path) -> Path:
    """Give the same trace with another answer at position 40."""
    path = tmp_path / "y.jsonl"
    path.write_bytes(
        joined(
            type(item)(position=40, answer={"answer": "something else"}, digest="0" * 16)
            if isinstance(item, Res) and item.position == 40
            else item
            for item in records(traced())
        )
    )
    return path


def test_a_trace_is_replayed_and_said_to_be_the_same(path: Path) -> None:
    done = run("replay", path)
    assert done.exit_code == 0, done.output
    assert f"{path}:\n  same: " in done.output
    assert "ends: the program is over" in done.output
    (found,) = json.loads(run("replay", path, "--json").output)["runs"]
    assert found["complete"] is True


def test_what_was_recorded_otherwise_is_shown_with_the_last_common_state(altered: Path) -> None:
    done = run("replay", altered)
    assert done.exit_code == 1
    assert "DIFFERENT at event" in done.output
    assert "position 40" in done.output
    assert '"something else"  (recorded)' in done.output
    assert "last common state, behind event" in done.output


def test_two_recordings_are_compared_with_each_other(path: Path, altered: Path) -> None:
    assert run("compare", path, path).exit_code == 0
    done = run("compare", path, altered, "--json")
    assert done.exit_code == 1
    (found,) = json.loads(done.output)["runs"]
    assert found["divergence"]["position"] == 40
    assert found["divergence"]["right"] == "something else"


def test_a_recording_is_compared_with_a_build(path: Path, altered: Path) -> None:
    assert run("compare", "kvd", path, "--snap-every", 1).exit_code == 0
    assert run("compare", altered, "kvd").exit_code == 1


def test_several_runs_are_told_one_by_one_and_one_difference_is_enough(
    path: Path, altered: Path
) -> None:
    done = run("replay", path, altered, path, "--json")
    assert done.exit_code == 1
    runs: list[dict[str, Any]] = json.loads(done.output)["runs"]
    assert [one["same"] for one in runs] == [True, False, True]


@pytest.mark.parametrize("lost_bytes", [2000, 1])
def test_a_cut_trace_replays_as_far_as_it_goes_and_that_is_said(
    path: Path, lost_bytes: int, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(traced())
    path.write_bytes(traced()[:-lost_bytes])
    done = run("replay", path)
    assert done.exit_code == 0
    assert f"{path}:\n  same as far as it goes: " in done.output
    assert "ends: the trace was cut off behind entry " in done.output
    (found,) = json.loads(run("replay", path, "--json").output)["runs"]
    assert (found["same"], found["complete"]) == (True, False)
    assert "the trace was cut off here" in run("show", path, "--to", 1).output
    assert "same as far as it goes: " in run("compare", path, whole).output


def test_who_was_cut_has_no_answer_to_what_came_behind(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(traced()[:-2000])
    done = run("compare", path, cut)
    assert done.exit_code == 2
    assert "cut.jsonl has no more events: the trace was cut off behind entry " in done.output


def test_a_trace_is_shown_in_words(path: Path) -> None:
    lines = run("show", path, "--from", 3, "--to", 5).output.splitlines()
    assert lines[0].startswith("group drawn, incarnation 1, stage 0, ranks 1, build ")
    assert "window_20 47 x 256 B" in lines[0]
    assert [line.split()[0] for line in lines[1::2]] == ["3", "4", "5"]
    assert len(lines) == 7


def test_scenarios_are_played_and_compared_on_their_configurations(tmp_path: Path) -> None:
    good = write(tmp_path, {"op": ADMIT, "expect": {"pages": 4}})
    assert f"{good} on one: as expected" in run("replay", good).output
    assert run("compare", "kvd", "kvd", "--events", good, "--answers").exit_code == 0
    bad = write(tmp_path, {"op": ADMIT, "expect": {"pages": 5}})
    done = run("replay", bad)
    assert done.exit_code == 1
    assert f"{bad} on one: step 1, admit at pages: 4, expected 5" in done.output


def test_a_scenario_is_recorded_as_a_trace_that_replays(tmp_path: Path) -> None:
    scenario, out = write(tmp_path, {"op": ADMIT}), tmp_path / "out.jsonl"
    assert run("record", "--scenario", scenario, "--out", out).exit_code == 0
    assert run("replay", out).exit_code == 0
    assert "group some, incarnation 1" in run("show", out).output


def test_another_program_is_an_allocator(path: Path) -> None:
    program = f"run:{sys.executable} -c 'import sys'"
    done = run("compare", "kvd", program, "--events", path)
    assert done.exit_code == 2
    assert "ended with exit code 0" in done.output


@pytest.mark.slow
def test_what_a_seed_draws_is_asked_of_two_allocators() -> None:
    done = run(
        *("compare", "kvd", "kvd", "--seeds", "3-4", "--shape", "state-full", "--steps", 120),
        *("--snap-every", 1, "--json"),
    )
    assert done.exit_code == 0, done.output
    runs = json.loads(done.output)["runs"]
    assert {"state-full-3-1", "state-full-4-1"} <= {one["name"] for one in runs}
    assert sum(one["decisions"] for one in runs) > 10
    assert sum(one["states"] for one in runs) > 5


REFUSED = [
    (("replay", "{none}"), "none.jsonl cannot be read: No such file or directory"),
    (("replay", "{folder}"), "cannot be read: Is a directory"),
    (("show", "{folder}"), "cannot be read: Is a directory"),
    (("show", "{empty}"), "empty.jsonl has no whole head"),
    (("replay", "{empty}"), "empty.jsonl has no whole head"),
    (("show", "{text}"), "text.jsonl is no trace; it begins with b'hello"),
    (("replay", "{version}"), "version.jsonl has format 'kvd.trace/9'; this build reads"),
    (("replay", "{x}", "--with", "jemalloc"), "'jemalloc' is no allocator and no file"),
    (("replay", "{x}", "--with", "tree:/tmp"), "/tmp is no source tree of kvd"),
    (("replay", "{x}", "--with", "run:"), "'run:' names no command"),
    (("replay", "{x}", "--on", "one"), "--on goes with scenarios"),
    (("compare", "kvd", "kvd"), "name what to ask, with --events FILE"),
    (("record", "--out", "{x}"), "x.jsonl is there already; choose another --out"),
    (("record", "--out", "{folder}/no/o"), "no/o cannot be written: No such file or directory"),
    (("record", "--out", "/proc/o"), "--out /proc/o cannot be written"),
    (("record", "--out", "{none}", "--on", "one"), "--on goes with --scenario"),
    (("record", "--out", "{none}", "--connect", "k.sock"), "--connect: a daemon of its own is"),
    (("record", "--out", "{none}", "--", "--connect=k.sock"), "--connect: a daemon of its own is"),
    (("record", "--out", "{none}", "--scenario", "{x}"), "x.jsonl is no scenario"),
    (("compare", "kvd", "kvd", "--seeds", "3-x"), "--seeds is '3-x'; allowed is one number"),
    (("compare", "kvd", "kvd", "--seeds", "5-3"), "--seeds is '5-3'; allowed is one number"),
    (("compare", "kvd", "kvd", "--seeds", "1", "--shape", "cube"), "shape 'cube' is unknown"),
    (("compare", "{x}", "kvd", "--shape", "cube"), "--shape goes with --seeds"),
    (("record",), "Missing option '--out'"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_a_mistake_is_one_line_that_names_it(
    arguments: tuple[str, ...], said: str, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "text.jsonl").write_text("hello\nworld\n")
    (tmp_path / "version.jsonl").write_bytes(traced().replace(b"kvd.trace/1", b"kvd.trace/9"))
    names = {one.stem: one for one in tmp_path.iterdir()}
    names |= {"none": tmp_path / "none.jsonl", "folder": tmp_path}
    done = run(*(one.format(**names) for one in arguments))
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert sum("rror:" in line for line in done.output.splitlines()) == 1
    assert not (tmp_path / "none.jsonl").exists()
    assert path.read_bytes() == traced()


def test_a_record_is_a_line() -> None:
    assert encode_record(records(traced())[0]).count(b"\n") == 1


def test_a_command_that_cannot_be_split_is_one_error(path: Path) -> None:
    done = run("replay", path, "--with", "run:'open")
    assert done.exit_code != 0
    assert done.output == 'error: "run:\'open" is no command: No closing quotation\n'


def test_positions_to_show_are_not_negative(path: Path) -> None:
    assert run("show", path, "--from", "-5").exit_code != 0
