"""The verdict over a replay: what counts as wrong, and how it is said."""

from dataclasses import replace

import msgspec
import pytest

from kvd.testing.messages import RankFailure, RankReport
from kvd.testing.painter import Corruption, Mismatch
from kvd.testing.replay import RankProblem, ReplayOutcome
from kvd.testing.report import BandMotion, ReplayReport, StageMotion
from kvd.testing.traces import Selection, Trace, TraceRequest
from kvd_proto.scalars import Position, RequestId

REQUESTS = (TraceRequest(3, 10, 5), TraceRequest(8, 20, 5))
SELECTION = Selection(Trace("some.jsonl", REQUESTS), "the first 2 requests", REQUESTS)


def rank_report(rank_index: int = 0) -> RankReport:
    return RankReport(
        rank_index=rank_index,
        is_scheduler=True,
        served_count=2,
        served_tokens=40,
        written_tokens=38,
        pass_count=100,
        step_count=90,
        running_count_max=2,
        waiting_pass_count=1,
        idle_pass_count=0,
        refused_take_count=5,
        retracted_count=2,
        recomputed_tokens=640,
        clipped_count=0,
        unschedulable=(),
        verdicts={"FITS": 2, "WAIT": 7},
        refusals={"NO_BYTES": 7},
        elapsed_ms=2000,
        batch_p50_us=100.4,
        batch_p99_us=900.6,
        useful_bytes_max=3 << 20,
        arena_bytes=4 << 20,
        written_bytes=2_000_000_000,
        checked_bytes=5_000_000_000,
        checked_units=1234,
        corrupted_count=0,
        mismatch_count=0,
        mismatches=(),
        places_digest="abc",
        tables_count=6,
        position=Position(77),
    )


def verdict(*reports: RankReport, problems: tuple[RankProblem, ...] = ()) -> ReplayReport:
    return ReplayReport(selection=SELECTION, outcome=ReplayOutcome(reports, problems))


def test_ranks_that_agree_on_everything_leave_no_finding() -> None:
    report = verdict(rank_report(0), rank_report(1))

    assert report.findings == ()
    assert report.as_json()["ok"] is True


MOTION = StageMotion(
    layouts={"no_move": 9, "flush_ends": 3, "relayout": 2},
    bands=(
        BandMotion(
            name="window_128", is_float=True, moved_units=5, moved_bytes=5 << 20, batches_count=2
        ),
        BandMotion(
            name="full", is_float=False, moved_units=7, moved_bytes=1 << 20, batches_count=4
        ),
    ),
    retracted_count=2,
    lapsed_count=11,
)


def test_relief_is_every_layout_for_which_something_moved() -> None:
    document = replace(verdict(rank_report()), motion=MOTION).as_json()

    assert document["relief"] == 5
    assert document["layouts"] == {"no_move": 9, "flush_ends": 3, "relayout": 2}
    # Only floats are relocated; an end's frontier is drawn back.
    assert document["relocations"] == 2
    assert document["moved_units"] == {"window_128": 5, "full": 7}
    assert document["moved_bytes"] == 6 << 20
    assert document["retracted"] == 2
    assert document["takes_refused"] == 5
    assert document["tokens_recomputed"] == 640
    assert document["waited"] == 7
    assert document["lapsed"] == 11
    assert document["ok"] is True


def test_the_text_says_what_was_done_to_make_room() -> None:
    text = "\n".join(replace(verdict(rank_report()), motion=MOTION).lines())

    for part in (
        "5 (layouts: no_move 9, flush_ends 3, relayout 2)",
        "6.0 MiB (pages and slots: full 7, window_128 5), 2 relocations of floating bands",
        "11 promises lapsed, 5 takes refused, 2 requests retracted with 640 tokens",
        "tables checked      6 equal to the daemon's books",
    ):
        assert part in text


def test_retractions_that_the_daemon_counts_otherwise_are_a_finding() -> None:
    report = replace(verdict(rank_report()), motion=replace(MOTION, retracted_count=3))

    assert report.findings == ("2 requests were told that they are retracted, the daemon counts 3",)


def test_counts_are_those_of_a_rank_that_decides() -> None:
    follower = msgspec.structs.replace(rank_report(0), is_scheduler=False, served_count=0)

    document = verdict(follower, rank_report(1)).as_json()

    assert document["requests"] == 2
    assert document["iterations"] == 100
    assert document["iterations_per_s"] == 50
    assert document["refusals"] == {"NO_BYTES": 7}
    assert document["bytes_checked"] == 10_000_000_000


def test_the_text_gives_rates_percentiles_and_shares() -> None:
    text = "\n".join(verdict(rank_report()).lines())

    for part in (
        "2 of 2, at most 2 at a time",
        "40 in 2.0 s (20/s)",
        "100 (50/s)",
        "p50 100 us, p99 901 us",
        "3.0 MiB of an arena of 4.0 MiB per rank (75%)",
        "WAIT 7, FITS 2",
        "NO_BYTES 7",
    ):
        assert part in text


def test_a_mismatch_is_a_finding_and_names_its_line_of_the_trace() -> None:
    mismatch = Mismatch(RequestId(2), "full", 3, 17, 0, "byte 8: 0x1 instead of 0x0")
    report = verdict(
        msgspec.structs.replace(rank_report(), mismatch_count=1, mismatches=(mismatch,))
    )

    assert report.mismatch_count == 1
    assert report.findings == (
        "mismatch: request 2, band full, page 3 (physical 17) on rank 0: "
        "byte 8: 0x1 instead of 0x0 [line 8 of some.jsonl]",
    )


def test_a_mismatch_that_is_found_again_is_told_once() -> None:
    again = Mismatch(RequestId(1), "full", 3, 17, 0, "bad")
    other = Mismatch(RequestId(1), "full", 4, 18, 0, "bad")
    report = verdict(
        msgspec.structs.replace(
            rank_report(), mismatch_count=4, mismatches=(again, other, again, again)
        )
    )

    assert report.findings == (
        "mismatch: request 1, band full, page 3 (physical 17) on rank 0: bad "
        "[line 3 of some.jsonl], found 3 times",
        "mismatch: request 1, band full, page 4 (physical 18) on rank 0: bad "
        "[line 3 of some.jsonl]",
    )


def test_repeated_mismatches_are_not_counted_as_further_ones() -> None:
    again = Mismatch(RequestId(1), "full", 3, 17, 0, "bad")
    report = verdict(
        msgspec.structs.replace(rank_report(), mismatch_count=30, mismatches=(again,) * 20)
    )

    assert len(report.findings) == 2
    assert report.findings[-1] == "10 further mismatches"


def test_many_mismatches_are_counted_behind_the_first() -> None:
    mismatches = tuple(
        Mismatch(RequestId(1), "full", page_index, 17, 0, "bad") for page_index in range(20)
    )
    report = verdict(
        msgspec.structs.replace(rank_report(), mismatch_count=500, mismatches=mismatches)
    )

    assert len(report.findings) == 11
    assert report.findings[-1] == "490 further mismatches"


@pytest.mark.parametrize("change", [{"position": 78}, {"places_digest": "def"}])
def test_ranks_that_saw_another_log_or_other_places_are_a_finding(
    change: dict[str, object],
) -> None:
    report = verdict(rank_report(0), msgspec.structs.replace(rank_report(1), **change))

    assert len(report.findings) == 1
    assert report.findings[0].startswith("ranks that follow one log differ: rank 0 at position 77")


def test_units_that_stay_live_are_a_finding() -> None:
    report = replace(verdict(rank_report()), left_units={"full": 3, "window_128": 0})

    assert report.findings == (
        "3 units of band full are still live after the last request was freed",
    )


def test_a_rank_that_failed_is_a_finding_and_no_report_is_needed() -> None:
    problem = RankProblem(1, RankFailure(error="Ended", message="killed", trace=""))
    report = verdict(problems=(problem,))

    assert report.findings == ("rank 1: Ended: killed",)
    assert report.lines() == ["no rank got to the end of the workload"]
    assert report.as_json()["requests"] == 0


def test_a_replay_that_served_nothing_is_a_finding() -> None:
    report = verdict(msgspec.structs.replace(rank_report(), served_count=0))

    assert report.findings == ("no request was served",)


@pytest.mark.parametrize(("corrupted_count", "finding_count"), [(0, 1), (1, 0)])
def test_a_corruption_that_was_never_planted_is_a_finding(
    corrupted_count: int, finding_count: int
) -> None:
    report = replace(
        verdict(msgspec.structs.replace(rank_report(), corrupted_count=corrupted_count)),
        corruption=Corruption(RequestId(1), "full", 9),
    )

    assert len(report.findings) == finding_count


def test_a_page_that_never_moved_and_was_to_be_corrupted_then_is_a_finding() -> None:
    report = replace(
        verdict(rank_report()), corruption=Corruption(RequestId(1), "full", 9, after_move=True)
    )

    assert report.findings == (
        "page 9 of request 1 in band full was to be corrupted and was never moved",
    )
