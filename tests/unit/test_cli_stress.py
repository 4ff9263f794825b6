"""``kvd stress``: what it prints, writes and returns."""

import signal
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


@pytest.mark.parametrize(
    "content", [b"\xff\x00", b"", b"{}", b"[1]", b'{"shape": "round", "seed_index": 1}']
)
def test_a_file_that_is_no_program_is_one_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)

    result = CliRunner().invoke(cli, ["stress", "--program", str(path)])

    assert result.exit_code != 0
    assert result.output.startswith(f"error: {path} ")


def test_a_folder_is_no_program(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["stress", "--program", str(tmp_path)])

    assert result.output == f"error: {tmp_path} cannot be read: Is a directory\n"


def test_an_interrupt_while_a_program_is_made_small_leaves_it_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ChainAllocator, "fits", _fail)
    monkeypatch.setattr("kvd.cli.stress.shrink", interrupted)
    result = CliRunner().invoke(
        cli, ["stress", "--seeds", "1", "--ops", "8", "--shape", "full", "--out", str(tmp_path)]
    )

    assert (result.exit_code, result.stderr) == (128 + signal.SIGINT, "interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["full-0.json"]


def test_a_program_that_cannot_be_written_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChainAllocator, "fits", _fail)
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(
        cli, ["stress", "--seeds", "1", "--ops", "8", "--out", str(tmp_path / "file" / "x")]
    )

    assert f"error: --out {tmp_path}/file/x cannot be written: Not a directory" in result.output


@pytest.mark.parametrize("options", [[], ["--afresh"], ["--recorded"]])
@pytest.mark.parametrize("content", [b"\xff\x00", b"# My notes\n"])
def test_what_is_no_table_of_faults_is_refused_and_kept(
    content: bytes, options: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(content)

    result = CliRunner().invoke(cli, ["stress", "--mutants", "--table", str(path), *options])

    assert result.exit_code != 0
    assert f"{path} is no table of planted faults" in result.output
    assert path.read_bytes() == content


def test_recorded_runs_need_a_table() -> None:
    result = CliRunner().invoke(cli, ["stress", "--mutants", "--recorded"])

    assert result.exit_code != 0
    assert "--recorded needs a --table" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mutants", "--backend", "cuda"], "--backend: no effect with --mutants"),
        (["--mutants", "--program", "x.json"], "--program: no effect with --mutants"),
        (["--mutants", "--shape", "full"], "--shape: no effect with --mutants"),
        (["--mutants", "--first-seed", "0"], "--first-seed: no effect with --mutants"),
        (["--mutants", "--seeds", "22", "a"], "--seeds: no effect with --mutants"),
        (["--mutants", "--oracle-share", "1"], "--oracle-share: no effect with --mutants"),
        (["--mutants", "--out", "x"], "--out: no effect with --mutants"),
        (["--mutants", "--shrink-runs", "1"], "--shrink-runs: no effect with --mutants"),
        (["--mutants", "--coverage", "--quiet"], "--coverage, --quiet: no effect with --mutants"),
        (["--mutants", "--recorded", "--table", "x", "--ops", "1"], "--ops: no effect with --rec"),
        (["--mutants", "--recorded", "--table", "x", "--afresh"], "--afresh: no effect with --rec"),
        (["--mutants", "--afresh"], "--afresh needs a --table"),
        (["--table", "x"], "--table goes with --mutants"),
        (["--afresh"], "--afresh goes with --mutants"),
        (["--recorded"], "--recorded goes with --mutants"),
        (["some-fault"], "some-fault goes with --mutants"),
        (["--program", "x.json", "--backend", "daemon"], "--backend: no effect with --program"),
        (["--program", "x.json", "--seeds", "3"], "--seeds: no effect with --program"),
        (["--backend", "daemon", "--shrink-runs", "9"], "--shrink-runs: no effect with --backend"),
        (["--backend", "cuda", "--shrink-runs", "9"], "--shrink-runs: no effect with --backend"),
        (["--backend", "daemon", "--oracle-share", "9"], "--oracle-share: no effect with --back"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    result = CliRunner().invoke(cli, ["stress", *arguments])

    assert result.exit_code != 0
    assert said in result.output
    assert sum("rror:" in line for line in result.output.splitlines()) == 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_of_making_a_program_small_is_shown_to_a_terminal_alone(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_terminal)))
    monkeypatch.setenv("FORCE_COLOR" if is_terminal else "NO_COLOR", "1")
    monkeypatch.setattr(ChainAllocator, "fits", _fail)
    program = Program(shape="full", seed_index=3, steps=(Send(), Relief(units=(2,)), Send()))
    path = tmp_path / "found.json"
    path.write_bytes(encode_program(program))

    result = CliRunner().invoke(cli, ["stress", "--program", str(path), "--shrink-runs", "40"])

    assert ("making it smaller" in result.stderr) == is_terminal
    assert ("steps left" in result.stderr) == is_terminal
    assert is_terminal or result.stderr == ""
    assert "making it smaller" not in result.stdout
