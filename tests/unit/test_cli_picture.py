"""The picture of an arena: who owns which cell, and what the legend says."""

from itertools import pairwise

import pytest
from click import unstyle

from kvd.cli.picture import Stretch, Use, band_letters, render_map, stretches_of
from kvd.cli.query import BandStatistics, StageStatistics


def band(
    name: str,
    start: int,
    end: int,
    *,
    live: int,
    pending: int = 0,
    promised: int = 0,
    fixed: int = 0,
    unit_bytes: int = 100,
) -> BandStatistics:
    return BandStatistics(
        name=name,
        kind="state" if name == "state" else "full",
        chain_kind="float",
        unit_bytes=unit_bytes,
        page_tokens=1,
        unit_index_min=1,
        unit_index_end_count=100,
        span_start_index=start,
        span_end_index=end,
        live_units=live,
        hole_units=end - start - live - pending,
        pending_units=pending,
        promised_units=promised,
        fixed_units=fixed,
    )


def stage(*bands: BandStatistics, arena_bytes: int = 10_000, sink: int = 100) -> StageStatistics:
    return StageStatistics(
        stage=0, position=5, request_count=2, arena_bytes=arena_bytes, sink_bytes=sink, bands=bands
    )


MIXED = stage(
    band("state", 1, 11, live=8),
    band("window_128", 30, 50, live=10, pending=4, promised=3),
    band("full", 60, 100, live=40),
)


def test_stretches_cover_the_arena_without_overlap() -> None:
    stretches = stretches_of(MIXED)

    assert stretches[0].start_bytes == 0
    assert stretches[-1].end_bytes == 10_000
    assert all(a.end_bytes == b.start_bytes for a, b in pairwise(stretches))
    assert [stretch.use for stretch in stretches] == [
        Use.SINK,
        Use.LIVE,
        Use.HOLE,
        Use.GAP,
        Use.LIVE,
        Use.PENDING,
        Use.PROMISED,
        Use.HOLE,
        Use.GAP,
        Use.LIVE,
    ]


def test_an_empty_band_takes_no_bytes() -> None:
    stretches = stretches_of(
        stage(band("window_128", 30, 30, live=0), band("full", 100, 100, live=0))
    )

    assert stretches == (Stretch(0, 100, Use.SINK), Stretch(100, 10_000, Use.GAP))


def test_a_cell_shows_what_most_of_its_bytes_are() -> None:
    picture = unstyle(render_map(MIXED, 100)).splitlines()

    assert picture[0] == (
        "#"
        + "S" * 8
        + "s" * 2
        + "." * 19
        + "W" * 10
        + "~" * 4
        + "+" * 3
        + "w" * 3
        + "." * 10
        + "F" * 40
    )


def test_fixed_units_stand_apart_from_what_may_be_moved() -> None:
    bar, *_, legend, _, _ = unstyle(
        render_map(stage(band("full", 60, 100, live=40, fixed=10)), 100)
    ).splitlines()

    assert bar.endswith("." + "!" * 10 + "F" * 30)
    assert "F 40 live, f 0 holes, ! 10 fixed pages" in legend


def test_a_promise_beyond_the_holes_is_counted_but_has_no_place() -> None:
    stretches = stretches_of(stage(band("full", 90, 100, live=6, promised=50)))

    assert stretches[-1] == Stretch(9_600, 10_000, Use.PROMISED, 0)


@pytest.mark.parametrize("width", [20, 37, 80, 1000])
def test_a_picture_is_as_wide_as_asked_and_shows_every_band(width: int) -> None:
    bar, scale, *_ = unstyle(render_map(MIXED, width)).splitlines()

    assert len(bar) == len(scale) == width
    assert {"#", "S", "W", "F", "."} <= set(bar)


def test_few_bytes_of_a_large_arena_still_get_a_cell() -> None:
    tiny = stage(band("full", 9_999, 10_000, live=1), arena_bytes=1_000_000)

    bar = unstyle(render_map(tiny, 50)).splitlines()[0]

    assert bar == "#" + "." * 48 + "F"


def test_the_legend_gives_bytes_and_counts() -> None:
    legend = unstyle(render_map(MIXED, 80)).splitlines()[3:]

    assert [line.split()[:2] for line in legend] == [
        ["S", "state"],
        ["W", "window_128"],
        ["F", "full"],
        ["#", "sink"],
        [".", "free"],
    ]
    assert legend[1].endswith("W 10 live, w 6 holes, + 3 promised, ~ 4 pending pages of 100 bytes")
    assert "S 8 live, s 2 holes slots of 100 bytes" in legend[0]


def test_bands_with_the_same_first_letter_get_letters_of_their_own() -> None:
    bands = [band(name, 1, 2, live=1) for name in ("window_512", "window_128", "full")]

    assert band_letters(bands) == ("W", "I", "F")
