"""Recording and replaying the benchmark's batches in one process."""

import pytest

from kvd.testing.bench_core import (
    WARM_UP_COUNT,
    measure_feasible,
    measure_levels,
    record,
    replay,
)
from kvd_proto.codec import decode_operation, split_batch
from kvd_proto.operations import Admit, Advance, Free, Launch, Processed, Take


@pytest.mark.parametrize("page_tokens", [1, 64])
def test_a_replay_times_every_recorded_step_behind_the_setup(page_tokens: int) -> None:
    recording = record(requests_count=4, page_tokens=page_tokens, steps_count=7, seed_index=3)

    times = replay(recording)

    assert len(recording.bodies) == recording.setup_count + 7
    assert len(times) == 7
    assert times.min() > 0


def test_a_step_is_launch_processed_advance_and_take_in_one_batch() -> None:
    recording = record(requests_count=2, page_tokens=64, steps_count=1, seed_index=3)

    kinds = [type(decode_operation(raw)) for raw in split_batch(recording.bodies[-1])]

    assert kinds[:4] == [Launch, Processed, Advance, Take]


def test_requests_that_end_are_freed_and_replaced_inside_the_batch() -> None:
    recording = record(requests_count=16, page_tokens=64, steps_count=300, seed_index=3)

    kinds = [
        type(decode_operation(raw))
        for body in recording.bodies[recording.setup_count - WARM_UP_COUNT :]
        for raw in split_batch(body)
    ]

    # 16 requests at random places of 2,000 tokens: three of them end in 364 steps on average.
    assert 1 <= kinds.count(Free) <= 10
    assert kinds.count(Admit) == kinds.count(Free)


def test_recordings_of_one_seed_are_the_same_bytes() -> None:
    first = record(requests_count=4, page_tokens=64, steps_count=5, seed_index=9)
    second = record(requests_count=4, page_tokens=64, steps_count=5, seed_index=9)

    assert first.bodies == second.bodies


def test_feasible_is_measured_for_three_and_six_bands_with_targets() -> None:
    figures = {figure.name: figure for figure in measure_feasible()}

    assert figures["feasible_3_bands"].target == 15
    assert figures["feasible_6_bands"].target == 40
    assert all(figure.value > 0 for figure in figures.values())


def test_a_step_is_measured_at_every_level_of_checks() -> None:
    measured = measure_levels(requests_count=2, page_tokens=64, steps_count=2, seed_index=3)
    figures = {figure.name: figure.value for figure in measured}

    names = {f"page64_checks_{level}_step_p50" for level in ("off", "warn", "strict")}
    assert names <= figures.keys()
    assert all(value > 0 for value in figures.values())
    assert figures["page64_checks_strict_ratio"] == (
        figures["page64_checks_strict_step_p50"] / figures["page64_checks_off_step_p50"]
    )
