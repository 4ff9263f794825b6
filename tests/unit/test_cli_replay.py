"""What ``kvd replay`` refuses before it starts a process."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvd.cli.main import cli


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--corrupt", "201"), "--corrupt names request 201, allowed is 1 to 200"),
        (("--corrupt", "0"), "--corrupt names request 0, allowed is 1 to 200"),
        (
            ("--corrupt", "7-full"),
            "--corrupt is '7-full', allowed is REQUEST[:BAND[:PAGE[:moved]]]",
        ),
        (("--corrupt", "7:full:-1"), "--corrupt is '7:full:-1'"),
        (("--corrupt", "7:full:1:gone"), "--corrupt is '7:full:1:gone'"),
        (
            ("--corrupt", "3:nope"),
            "--corrupt names band 'nope', allowed is one of window_128, full\n",
        ),
        (
            ("--corrupt", "3:window_128", "--preset", "phi-4-mini-flash", "--tp", "1"),
            "--corrupt names band 'window_128', allowed is one of state, window_512, full\n",
        ),
        (("--budget", "lots"), "lots"),
        (("--preset", "no-such-model"), "no-such-model"),
        (("--preset", "gpt-oss-20b", "--model", "/x"), "--preset and --model exclude each other"),
        (("--model", "/no/such/model"), "/no/such/model"),
        (("--requests", "9999"), "has 1000 requests of at most 4096 tokens"),
        (("--tokens-max", "3"), "has 0 requests of at most 3 tokens"),
        (("--trace", "/no/such/trace"), "trace /no/such/trace cannot be read"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_in_one_line(
    options: tuple[str, ...], said: str
) -> None:
    result = CliRunner().invoke(cli, ["replay", *options])

    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert said in result.output
    assert result.output.count("\n") == 1


def test_a_malformed_trace_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 2}\n{"oops"}\n')

    result = CliRunner().invoke(cli, ["replay", "--trace", str(path)])

    assert result.exit_code == 2
    assert f"trace {path}, line 2" in result.output
