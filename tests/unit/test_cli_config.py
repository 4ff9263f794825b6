"""``kvd config``: values with their origin, as a table and as JSON."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvd.cli.main import cli
from kvd.config import section_names, specs

ALL_NAMES = [name for section in section_names() for name in specs(section)]


def run_json(*arguments: str, **environ: str) -> dict[str, dict[str, object]]:
    ran = CliRunner(env=environ).invoke(cli, ["config", "--json", *arguments])
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.stdout)
    assert document["schema"] == "kvd.config/1"
    return {item["name"]: item for item in document["settings"]}


def test_json_has_every_setting_once() -> None:
    assert list(run_json()) == ALL_NAMES


def test_json_says_where_a_value_came_from() -> None:
    item = run_json(KVD_HEARTBEAT_MS="500")["heartbeat_ms"]
    assert item["value"] == 500
    assert item["origin"] == "environment"
    assert item["source"] == "KVD_HEARTBEAT_MS"


def test_json_gives_sizes_in_bytes() -> None:
    assert run_json("--budget", "1GiB")["budget_bytes"]["value"] == 1 << 30


def test_the_table_has_every_setting_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "kvd.toml"
    file.write_text("[sizing]\npage_tokens = 16\n", encoding="utf-8")
    ran = CliRunner().invoke(cli, ["config", "--config", str(file)])
    assert ran.exit_code == 0, ran.output
    assert [name for name in ALL_NAMES if name not in ran.output] == []
    (line,) = [line for line in ran.output.splitlines() if "page_tokens" in line]
    assert "16" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--page", "0"], "error: page_tokens = '0' (from --page) is not a whole number"),
        (["--config", "/no/kvd.toml"], "error: settings file '/no/kvd.toml' cannot be read"),
        (["--socket", "kvd.sock"], "error: socket_path = 'kvd.sock' (from --socket)"),
    ],
)
def test_a_wrong_setting_is_one_line_on_stderr(arguments: list[str], message: str) -> None:
    ran = CliRunner().invoke(cli, ["config", *arguments])
    assert ran.exit_code == 2
    assert ran.stderr.startswith(message)
    assert ran.stderr.count("\n") == 1
