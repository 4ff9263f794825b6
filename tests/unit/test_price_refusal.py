"""What a refusal says."""

import pytest

from kvd.price.geometry import ChainGeometry
from kvd.price.plans import feasible
from kvd.price.refusal import Obstacle, ObstacleKind, never_fits, obstacle_text, why_not
from kvd.price.search import Units
from kvd.price.snapshot import ChainSnapshot, empty_snapshot
from tests.stateful.price_model import chain_of, changed

CHAIN = chain_of((8, 1, 5, 3), (6, 9, 13, 3), (4, 24, 30, 5), arena_bytes=120, sink_bytes=8)
"""State bytes [8, 40), window [54, 78), full [96, 120); one hole each."""

FEW_IDS = changed(CHAIN, 2, id_room_count=2, promised_units=1)
HARD_FIXED = changed(CHAIN, 1, hard_fixed=(9, 10))
ASTRAY = CHAIN._replace(blocked=((90, 92),), quarantined=((90, 92),))


def test_there_is_no_obstacle_where_a_layout_serves() -> None:
    assert why_not(CHAIN, (3, 1, 0)) is None


@pytest.mark.parametrize(
    ("snapshot", "demand", "obstacle"),
    [
        pytest.param(
            FEW_IDS, (0, 0, 4), Obstacle(ObstacleKind.IDS, 2, 3, 0, 2), id="ids, promises included"
        ),
        pytest.param(
            CHAIN,
            (12, 0, 0),
            Obstacle(ObstacleKind.INDEX_ROOM, 0, 1, 8, 0),
            id="fourteen units of state are all there are",
        ),
        pytest.param(
            CHAIN,
            (0, 6, 6),
            Obstacle(ObstacleKind.BYTES, 1, 2, 10, 2),
            id="24 + 54 + 44 bytes of 112",
        ),
        pytest.param(
            CHAIN,
            (0, 4, 6),
            Obstacle(ObstacleKind.PADDING, 2, 1, 2, 2),
            id="110 bytes of 112, but the window ends at 78 and full begins at 76",
        ),
        pytest.param(
            HARD_FIXED,
            (4, 0, 0),
            Obstacle(ObstacleKind.FIXED, 0, 2, 12, 1),
            id="state ends at 64, a fixed unit lies at 54",
        ),
        pytest.param(
            ASTRAY,
            (0, 0, 3),
            Obstacle(ObstacleKind.BLOCKED, 2, 1, 4, 2),
            id="full would begin at 88, below blocked bytes that end at 92",
        ),
    ],
)
def test_an_obstacle_says_what_is_short_and_where(
    snapshot: ChainSnapshot, demand: Units, obstacle: Obstacle
) -> None:
    assert not feasible(snapshot, demand)
    assert why_not(snapshot, demand) == obstacle


def test_both_fixed_and_blocked_is_told_as_fixed() -> None:
    both = changed(CHAIN, 1, hard_fixed=(9, 10))._replace(
        blocked=((90, 92),), quarantined=((90, 92),)
    )
    found = why_not(both, (4, 0, 3))
    assert found is not None
    assert found.kind is ObstacleKind.FIXED


def test_a_low_end_that_meets_blocked_bytes_names_itself() -> None:
    astray = CHAIN._replace(blocked=((44, 46),), quarantined=((44, 46),))
    assert why_not(astray, (2, 0, 0)) == Obstacle(ObstacleKind.BLOCKED, 0, 1, 4, 0)


def test_blocked_bytes_that_may_yet_be_waited_for_are_no_obstacle() -> None:
    assert why_not(CHAIN._replace(blocked=((90, 92),)), (0, 0, 3)) is None


def test_a_float_pushed_behind_the_end_of_its_grid_names_itself() -> None:
    snapshot = chain_of((8, 1, 11, 10), (30, 3, 3, 0), (1, 125, 125, 0), arena_bytes=125)
    assert why_not(snapshot, (0, 1, 0)) is None  # bytes [90, 120) above the low end's 88
    assert why_not(snapshot, (1, 1, 0)) == Obstacle(ObstacleKind.PADDING, 1, 1, 30, 1)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ObstacleKind.IDS, "3 ids of {band} in use, 7 promised"),
        (ObstacleKind.INDEX_ROOM, "the arena has 18 places for {band}"),
        (ObstacleKind.BYTES, "live and promised units fill the arena"),
        (ObstacleKind.PADDING, "the grids of {band} and {other} do not align"),
        (ObstacleKind.FIXED, "fixed pages of {other}"),
        (ObstacleKind.BLOCKED, "bytes beside {other} that a transfer still touches"),
    ],
)
def test_an_obstacle_is_told_in_words_that_name_its_bands(kind: ObstacleKind, said: str) -> None:
    band, other = (CHAIN.bands[index].geometry.name for index in (1, 2))
    text = obstacle_text(CHAIN, Obstacle(kind, 1, 1, 6, 2), promised_units=(0, 7, 0))
    assert text == said.format(band=band, other=other)


EMPTY = empty_snapshot(
    ChainGeometry(120, 8, tuple(band.geometry for band in CHAIN.bands)), (20, None, 40)
)
"""14 units of state, 18 of the window and 28 of full would fit alone."""


@pytest.mark.parametrize(
    ("ids", "demand", "kind", "short", "said"),
    [
        ((5, None, 40), (6, 0, 0), ObstacleKind.IDS, 1, "6 ids of band_0 asked, there are 5"),
        (
            (5, None, 40),
            (16, 0, 0),
            ObstacleKind.INDEX_ROOM,
            2,
            "16 units of band_0 asked, the arena has 14",
        ),
        ((20, None, 40), (0, 9, 15), ObstacleKind.BYTES, 1, "114 bytes asked of an arena that"),
        ((20, None, 40), (1, 10, 11), ObstacleKind.PADDING, 1, "do not align, even when empty"),
    ],
)
def test_what_fits_no_empty_arena_is_told_the_real_reason(
    ids: tuple[int | None, ...], demand: Units, kind: ObstacleKind, short: int, said: str
) -> None:
    bands = zip(EMPTY.bands, ids, strict=True)
    empty = EMPTY._replace(bands=tuple(band._replace(id_room_count=count) for band, count in bands))
    found = never_fits(empty, demand)
    assert found is not None
    obstacle, text = found
    assert (obstacle.kind, obstacle.units_short_units) == (kind, short)
    assert said in text


def test_what_fits_an_empty_arena_has_no_obstacle_there() -> None:
    assert never_fits(EMPTY, (1, 1, 1)) is None
