"""Benchmarks run and print their document; how fast they are is no test."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from kvd.cli.main import cli


def run(*arguments: str) -> dict[str, Any]:
    ran = CliRunner().invoke(cli, ["bench", *arguments, "--json"])
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.output)
    assert document["schema"] == "kvd.bench/1"
    assert document["bench"] == arguments[0]
    assert all(
        set(result) == {"name", "value", "unit", "target", "ok"} for result in document["results"]
    )
    return {result["name"]: result for result in document["results"]}


@pytest.mark.slow
@pytest.mark.parametrize("busy_poll", [False, True])
def test_rpc_prints_batch_echo_and_core_tight_and_paced(busy_poll: bool) -> None:
    flags = ["--busy-poll"] if busy_poll else []
    results = run("rpc", "--requests", "8", "--page", "64", "--seconds", "0.01", *flags)

    ending = "_busy_poll" if busy_poll else ""
    for name in (f"page64_tight{ending}", f"page64_paced_5ms{ending}"):
        assert results[f"{name}_batch_p50"]["value"] > results[f"{name}_core_mean"]["value"] > 0
        assert results[f"{name}_echo_p99.9"]["value"] > 0
        assert results[f"{name}_reply_bytes"]["value"] > 0
        assert results[f"{name}_samples"]["value"] >= 32


def test_targets_are_about_256_requests_only() -> None:
    results = run("core", "--requests", "4", "--page", "1", "--steps", "3")

    assert results["page1_core_step_p50"]["target"] is None
    assert results["page1_core_step_p50"]["ok"] is None
    assert results["feasible_3_bands"]["target"] == 15


@pytest.mark.slow
def test_core_at_full_size_has_its_target() -> None:
    results = run("core", "--page", "64", "--steps", "1")

    assert results["page64_core_step_p50"]["target"] == 30
    assert isinstance(results["page64_core_step_p50"]["ok"], bool)


def test_moves_stand_beside_a_copy_and_targets_are_about_a_gpu() -> None:
    results = run("moves", "--device", "host", "--size", "4MiB")

    assert results["host_copy"]["value"] > 0
    for size in ("8KiB", "64KiB", "256KiB", "2048KiB"):
        assert results[f"host_moves_{size}_ratio"]["value"] > 0
        assert results[f"host_moves_{size}_ratio"]["target"] is None


def test_apply_takes_a_steps_effects_apart() -> None:
    results = run("apply", "--device", "host", "--requests", "8", "--page", "64,1", "--steps", "5")

    for name in ("host_page64_apply", "host_page1_apply"):
        assert results[f"{name}_samples"]["value"] == 5
        for pace in ("tight", "paced"):
            whole, part = f"{name}_{pace}_p50", f"{name}_{pace}_enqueue_p50"
            assert results[whole]["value"] > results[part]["value"] > 0
            assert results[whole]["target"] is None


def test_apply_tells_the_drivers_part_from_pythons() -> None:
    results = run("apply", "--device", "idle", "--requests", "8", "--page", "64", "--steps", "5")

    name = "idle_page64_apply"
    parts = [results[f"{name}_{part}_p50"]["value"] for part in ("driver", "python")]
    assert sum(parts) == pytest.approx(results[f"{name}_tight_p50"]["value"])
    assert all(part > 0 for part in parts)


@pytest.mark.slow
def test_long_steps_go_round_staging_memory_on_a_driver_that_does_nothing() -> None:
    results = run("apply", "--device", "idle", "--page", "1", "--steps", "300")

    assert results["idle_page1_apply_tight_p50"]["value"] > 0


def test_apply_says_which_function_takes_how_much() -> None:
    arguments = ("--device", "idle", "--requests", "8", "--page", "64", "--steps", "5", "--profile")
    ran = CliRunner().invoke(cli, ["bench", "apply", *arguments])

    assert ran.exit_code == 0
    assert "known_replies.known_reply" in ran.output
    assert "stream.CudaStream.enqueue" in ran.output

    ran = CliRunner().invoke(cli, ["bench", "apply", *arguments, "--json"])
    assert ran.exit_code == 2
    assert "does not go with --json" in ran.output + ran.stderr


@pytest.mark.parametrize("pages", ["", "64,", "0", "x", "8192"])
def test_a_page_list_that_is_none_is_refused_by_name(pages: str) -> None:
    ran = CliRunner().invoke(cli, ["bench", "rpc", "--page", pages])

    assert ran.exit_code == 2
    assert f"--page {pages!r}" in ran.output + ran.stderr
