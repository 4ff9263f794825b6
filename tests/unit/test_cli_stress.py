"""``kvd stress``: what it prints, writes and returns."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvd.alloc.chain import ChainAllocator
from kvd.cli.main import cli
from kvd.testing.stress.program import Program, Relief, Send, decode_program, encode_program

FOUND = 1


def _fail(chain: ChainAllocator, demand: object) -> bool:
    raise IndexError("broken by hand")


def test_seeds_are_printed_in_order_and_counted() -> None:
    result = CliRunner().invoke(cli, ["stress", "--seeds", "2", "--ops", "8", "--shape", "full"])

    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert [line.split()[:3] for line in lines[:2]] == [
        ["seed", "0", "full"],
        ["seed", "1", "full"],
    ]
    assert lines[2].startswith("16 operations over 2 seeds and 1 shapes")
    assert lines[2].endswith("0 seeds failed")


def test_a_program_that_fails_is_made_small_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChainAllocator, "fits", _fail)
    program = Program(shape="full", seed_index=3, steps=(Send(), Relief(units=(2,)), Send()))
    path = tmp_path / "found.json"
    path.write_bytes(encode_program(program))

    result = CliRunner().invoke(
        cli, ["stress", "--program", str(path), "--out", str(tmp_path), "--shrink-runs", "40"]
    )

    assert result.exit_code == FOUND
    assert "stress.engine" in result.output
    small = decode_program((tmp_path / "found-small.json").read_bytes())
    assert small.steps == ()  # the end of any run asks whether a request fits


def test_an_unknown_shape_is_refused() -> None:
    result = CliRunner().invoke(cli, ["stress", "--shape", "round"])

    assert result.exit_code != 0
    assert "round" in result.output
