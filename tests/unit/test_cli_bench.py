"""`kvd bench capacity` and `scale` at the command line; what they measure is tested beside them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvd.cli import bench as bench_command
from kvd.cli.main import cli
from kvd.testing.bench_figures import Figure

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1000,100\n"
SMALL = ("--preset", "gpt-oss-20b", "--budget", "1GiB")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "short.csv"
    path.write_text(TRACE)
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments])


def test_capacity_prints_a_row_per_cell(trace: str) -> None:
    done = run("capacity", "--trace", trace, *SMALL, "--budget", "1536MiB")

    assert done.exit_code == 0, done.output
    assert done.stdout.count("short.csv") == 2
    assert "1536MiB" in done.stdout
    assert "WAIT: NO_BYTES" in done.stdout
    assert "short_gpt-oss-20b_1.5GiB: " in done.stderr


def test_capacity_prints_one_document(trace: str) -> None:
    done = run("capacity", "--trace", trace, *SMALL, "--page", "16", "--json")

    document = json.loads(done.stdout)
    (cell,) = document["runs"]
    unclaimed = document["results"][0]
    assert (document["schema"], document["bench"]) == ("kvd.bench/1", "capacity")
    assert unclaimed["name"] == "short_gpt-oss-20b_1GiB_unclaimed"
    assert unclaimed["ok"] is (unclaimed["value"] <= unclaimed["target"])
    assert set(unclaimed) == {"name", "value", "unit", "target", "ok"}
    assert cell["page_tokens"] == 16
    assert cell["requests"] > 0
    assert set(cell["rivals"]) == {"static_hindsight", "static_default", "lcm_pages"}


def test_capacity_draws_its_table(trace: str, tmp_path: Path) -> None:
    path = tmp_path / "capacity.svg"

    done = run("capacity", "--trace", trace, *SMALL, "--plot", str(path))

    assert done.exit_code == 0, done.output
    assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "much"), "--budget = 'much' is not a number of bytes"),
        (("--plot", "capacity.pdf"), "ends in .png or .svg"),
        (("--preset", "deepseek-v3"), "deepseek-v3 has one band"),
        (("--preset", "gpt-6"), "gpt-6"),
        (("--preset", "gpt-oss-20b", "--budget", "1MiB"), "1048576"),
    ],
)
def test_capacity_names_what_is_wrong_before_it_measures(
    arguments: tuple[str, ...], message: str
) -> None:
    done = run("capacity", *arguments)

    assert done.exit_code != 0
    assert message in done.output


def test_scale_prints_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> list[Figure]:
        return [Figure("take_4_by_age_growth", 1.1, "x", 1.3)]

    monkeypatch.setattr(bench_command, "measure_scale", measured)

    table, document = run("scale"), json.loads(run("scale", "--json").stdout)

    assert "take_4_by_age_growth" in table.stdout
    assert document["bench"] == "scale"
    assert document["results"] == [measured()[0].fields()]
