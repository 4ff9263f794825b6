"""The capacity benchmark: what is counted, when it stops, and how other designs fare."""

from dataclasses import replace

import pytest

from kvd.errors import WorkloadError
from kvd.testing.bench_capacity import (
    RIVALS,
    CapacityRun,
    CapacitySpec,
    Fill,
    measure_capacity,
    shared_presets,
)
from kvd.testing.traces import EXCERPT_NAMES, Trace, TraceRequest, excerpt

MiB = 1 << 20
GiB = 1 << 30
TRACE = Trace(
    "made_up.csv",
    (TraceRequest(2, 1000, 100), TraceRequest(3, 300, 700), TraceRequest(4, 5000, 1)),
)


def spec(preset: str, budget_bytes: int, trace: Trace = TRACE) -> CapacitySpec:
    return CapacitySpec(trace, preset, budget_bytes, page_tokens=64)


@pytest.fixture(scope="module")
def run() -> CapacityRun:
    return measure_capacity(spec("gpt-oss-20b", 2 * GiB))


def test_an_arena_is_filled_until_what_is_claimed_does_not_fit(run: CapacityRun) -> None:
    assert run.reason == "WAIT: NO_BYTES"
    assert 0 < run.live_bytes <= run.live_bytes + run.promised_bytes <= run.usable_bytes
    # With units of one size nothing is lost between bands: the asked request did not fit.
    assert run.live_bytes + run.promised_bytes + run.asked_bytes > run.usable_bytes
    assert run.claimed_percent > 100


def test_live_bytes_are_those_of_grown_requests_and_the_window_they_keep(run: CapacityRun) -> None:
    # Full attention holds every page; a window of 128 tokens at most four pages of 64.
    full_pages = [(1100 + 63) // 64, (1000 + 63) // 64, (5001 + 63) // 64]
    full_bytes = sum(full_pages[nth % 3] for nth in range(run.admitted_count)) * run.unit_bytes[1]
    window_bytes = run.live_bytes - full_bytes

    assert 0 < window_bytes <= 4 * run.admitted_count * run.unit_bytes[0]


def test_units_of_one_size_lose_nothing_to_common_pages(run: CapacityRun) -> None:
    assert run.unit_bytes[0] == run.unit_bytes[1]
    assert run.rivals["lcm_pages"] == run.rivals["static_hindsight"]
    assert run.rivals["static_hindsight"] == Fill(run.admitted_count, run.live_bytes)


def test_a_split_by_default_holds_less_than_one_with_hindsight(run: CapacityRun) -> None:
    default, hindsight = run.rivals["static_default"], run.rivals["static_hindsight"]

    assert default.admitted_count < hindsight.admitted_count
    assert default.held_bytes < hindsight.held_bytes


def test_pages_of_a_common_multiple_above_the_arena_hold_nothing() -> None:
    found = measure_capacity(spec("kimi-linear-48b-a3b", 2 * GiB))

    assert found.rivals["lcm_pages"] == Fill(0, 0)
    assert found.admitted_count > 10


def test_the_same_run_twice_is_the_same(run: CapacityRun) -> None:
    assert measure_capacity(run.spec) == run


def test_a_request_that_fits_no_empty_arena_is_skipped_and_counted() -> None:
    long = replace(TRACE, requests=(*TRACE.requests, TraceRequest(5, 90_000, 1)))

    found = measure_capacity(spec("gpt-oss-20b", 2 * GiB, long))

    assert found.never_count > 0
    assert found.reason == "WAIT: NO_BYTES"
    assert found.admitted_count > 3


def test_a_trace_of_which_nothing_ever_fits_is_refused() -> None:
    long = replace(TRACE, requests=(TraceRequest(2, 90_000, 1),))

    with pytest.raises(WorkloadError, match=r"no request of made_up\.csv fits"):
        measure_capacity(spec("gpt-oss-20b", 2 * GiB, long))


def test_a_model_with_one_band_is_refused() -> None:
    with pytest.raises(WorkloadError, match="deepseek-v3 has one band"):
        measure_capacity(spec("deepseek-v3", 8 * GiB))


def test_every_preset_but_those_with_one_band_is_measured() -> None:
    found = shared_presets()

    assert "deepseek-v3" not in found
    assert {"gpt-oss-20b", "qwen3-next-80b-a3b", "phi-4-mini-flash"} <= set(found)


def test_figures_name_their_cell_and_judge_what_is_left_over(run: CapacityRun) -> None:
    unclaimed, useful, *rivals, requests = run.figures()

    assert unclaimed.name == "made_up_gpt-oss-20b_2GiB_unclaimed"
    assert unclaimed.ok
    assert unclaimed.value == pytest.approx(100 - run.claimed_percent)
    assert useful.value == run.useful_percent
    assert [figure.name.partition("_useful_")[2] for figure in rivals] == list(RIVALS)
    assert requests.value == run.admitted_count


def test_a_refusal_with_room_left_misses_the_target(run: CapacityRun) -> None:
    early = replace(run, claimed_bytes=run.claimed_bytes // 2)

    assert early.figures()[0].ok is False


def test_claims_are_the_same_before_and_after_decoding(run: CapacityRun) -> None:
    # Decoding turns promises into pages and takes nothing beside them.
    assert run.claimed_bytes == run.live_bytes + run.promised_bytes + run.asked_bytes
    assert run.rivals["static_hindsight"].held_bytes == run.live_bytes


@pytest.mark.parametrize("trace_name", EXCERPT_NAMES)
def test_answers_longer_than_a_chunk_are_decoded_in_a_full_arena(trace_name: str) -> None:
    found = measure_capacity(spec("gemma-3-27b", 20 * GiB, excerpt(trace_name)))

    assert found.reason == "WAIT: NO_BYTES"
    assert found.claimed_percent >= 99
    assert found.claimed_bytes == found.live_bytes + found.promised_bytes + found.asked_bytes


def test_rows_do_not_run_out_before_bytes_in_a_small_arena() -> None:
    found = measure_capacity(spec("phi-4-mini-flash", GiB, excerpt("azure_2023_conv.csv")))

    assert found.reason == "WAIT: NO_BYTES"
    assert found.figures()[0].ok


def test_running_out_of_rows_is_reported_and_not_judged(run: CapacityRun) -> None:
    rowless = replace(run, reason="WAIT: NO_ROWS", claimed_bytes=run.claimed_bytes // 2)

    assert rowless.figures()[0].ok is None
    assert rowless.fields()["reason"] == "WAIT: NO_ROWS"
