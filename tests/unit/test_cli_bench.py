"""`kvd bench capacity` and `scale` at the command line; what they measure is tested beside them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvd.cli import bench as bench_command
from kvd.cli.main import cli
from kvd.testing.bench_capacity import CapacityRun, CapacitySpec
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
        (("--plot", "nowhere/capacity.png"), "there is no folder nowhere"),
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


def test_one_cell_that_fails_leaves_the_others_and_ends_in_an_error(trace: str) -> None:
    done = run("capacity", "--trace", trace, *SMALL, "--budget", "1MiB", "--json")

    document = json.loads(done.stdout)
    (cell,), (failure,) = document["runs"], document["failures"]
    assert done.exit_code != 0
    assert (cell["budget_bytes"], failure["budget_bytes"]) == (1 << 30, 1 << 20)
    assert "1048576" in failure["message"]
    assert "1 of 2 cells failed" in done.stderr


def test_capacity_makes_sure_it_can_draw_before_it_measures(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(spec: CapacitySpec) -> CapacityRun:
        pytest.fail(f"{spec.name} was measured")

    monkeypatch.setattr(bench_command, "measure_capacity", measured)

    done = run("capacity", "--trace", trace, *SMALL, "--plot", str(tmp_path / "no" / "x.png"))

    assert done.exit_code != 0
    assert "there is no folder" in done.output


@pytest.mark.parametrize("pages", ["4096", "64,513", "0", "x"])
def test_core_offers_only_pages_that_its_workload_can_use(pages: str) -> None:
    done = run("core", "--page", pages)

    assert done.exit_code != 0
    assert "1 to 512 tokens" in done.output


def test_core_runs_with_the_largest_page_it_offers() -> None:
    done = run("core", "--page", "512", "--requests", "2", "--steps", "2", "--json")

    names = {figure["name"] for figure in json.loads(done.stdout)["results"]}
    assert "page512_core_step_p50" in names


def test_scale_prints_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> list[Figure]:
        return [Figure("take_4_by_age_growth", 1.1, "x", 1.3)]

    monkeypatch.setattr(bench_command, "measure_scale", measured)

    table, document = run("scale"), json.loads(run("scale", "--json").stdout)

    assert "take_4_by_age_growth" in table.stdout
    assert document["bench"] == "scale"
    assert document["results"] == [measured()[0].fields()]
