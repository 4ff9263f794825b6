"""The applier: effects become the right bytes, in order, without a gap, or the rank is poisoned."""

import re
import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from kvd.testing.small_rank import (
    ARENA_BYTES,
    DEADLINE_MS,
    DRAFT_ROW_BYTES,
    FULL,
    PAGE_TOKENS,
    PLAN,
    ROW_COUNT,
    ROW_PAGES,
    STATE,
    SmallRank,
    outcome,
)
from kvd_client.device.apply import Applier, read_progress
from kvd_client.device.host import commands as host_commands
from kvd_client.device.host.stream import HostStream
from kvd_client.device.port import Commands
from kvd_client.errors import DeviceError, ReplyError
from kvd_proto.outcomes import (
    ClearSlots,
    Column,
    Move,
    ResetRows,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)
from tests.client.host_parts import in_fork


@pytest.fixture
def rank() -> Iterator[SmallRank]:
    rank = SmallRank()
    yield rank
    rank.close()


# ---- each effect ----


@pytest.mark.case("80")
def test_zero_fills_whole_units_of_its_band_only(rank: SmallRank) -> None:
    rank.applier.apply(1, outcome([Zero(FULL, Column(0))], columns=[[7, 9, 8, 40]]))
    rank.settle()

    zeroed = (rank.units(FULL) == 0).all(axis=1)
    assert zeroed.nonzero()[0].tolist() == [7, 8, 9, 40]
    assert np.count_nonzero(rank.memory.bytes == 0) - 4 * 128 == 16 - 1  # the progress words


def test_write_map_binds_and_unbinds(rank: SmallRank) -> None:
    rank.applier.clear()
    rank.applier.apply(
        1, outcome([WriteMap(FULL, Column(0), Column(1))], columns=[[1, 95, 3], [30, 31, 32]])
    )
    rank.applier.apply(2, outcome([WriteMap(FULL, Column(0))], columns=[[95]]))
    rank.settle()

    full_map = rank.int32(12_544, 96)
    assert {virtual: unit for virtual, unit in enumerate(full_map) if unit} == {1: 30, 3: 32}


def test_write_map_of_the_state_band_writes_that_bands_map(rank: SmallRank) -> None:
    rank.applier.clear()
    rank.applier.apply(1, outcome([WriteMap(STATE, Column(0), Column(1))], columns=[[2], [40]]))
    rank.settle()

    assert rank.int32(12_288, 10) == [0, 0, 40, 0, 0, 0, 0, 0, 0, 0]
    assert not any(rank.int32(12_544, 96))


def test_write_rows_writes_pages_and_how_far_the_rows_reach(rank: SmallRank) -> None:
    rank.applier.clear()
    rank.applier.apply(
        1,
        outcome(
            [WriteRows(Column(0), Column(1), Column(2))],
            columns=[[1, 1, 4], [0, 1, 5], [11, 12, 13]],
        ),
    )
    rank.settle()

    rows = np.array(rank.int32(13_056, ROW_COUNT * ROW_PAGES)).reshape(ROW_COUNT, ROW_PAGES)
    assert rows[1].tolist() == [11, 12, 0, 0, 0, 0]
    assert rows[4].tolist() == [0, 0, 0, 0, 0, 13]
    assert np.count_nonzero(rows) == 3
    assert rank.int32(13_312, ROW_COUNT) == [0, 2 * PAGE_TOKENS, 0, 0, 6 * PAGE_TOKENS]


def test_write_slots_writes_the_working_slot_of_rows(rank: SmallRank) -> None:
    rank.applier.clear()
    rank.applier.apply(1, outcome([WriteSlots(Column(0), Column(1))], columns=[[1, 3], [9, 2]]))
    rank.settle()

    assert rank.int32(13_568, ROW_COUNT * 2) == [0, 0, 9, 0, 0, 0, 2, 0, 0, 0]


def test_move_copies_units_of_its_band(rank: SmallRank) -> None:
    rank.units(FULL)[20] = 20
    rank.units(FULL)[21] = 21

    rank.applier.apply(1, outcome([Move(FULL, Column(0), Column(1))], columns=[[20, 21], [50, 49]]))
    rank.settle()

    assert set(rank.units(FULL)[50].tolist()) == {20}
    assert set(rank.units(FULL)[49].tolist()) == {21}
    assert set(rank.units(FULL)[20].tolist()) == {20}


def test_clear_zeroes_sink_and_tables_and_leaves_the_bands(rank: SmallRank) -> None:
    rank.applier.clear()
    rank.settle()

    assert not any(rank.memory.bytes[:512])
    assert set(rank.memory.bytes[512:ARENA_BYTES].tolist()) == {0xAB}
    assert not any(rank.int32(13_056, ROW_COUNT * ROW_PAGES))
    assert not any(rank.int32(13_312, ROW_COUNT))
    assert not any(rank.int32(13_568, ROW_COUNT * 2))
    assert not any(rank.int32(12_288, 10) + rank.int32(12_544, 96))
    assert read_progress(rank.memory, PLAN) == (0, 0)


def test_prewarm_runs_every_bands_paths_on_the_sink_and_changes_nothing_else(
    rank: SmallRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.applier.clear()
    rank.settle()
    rank.memory.bytes[: PLAN.sink_bytes] = 0xCD
    before = rank.memory.bytes.copy()
    ran: list[tuple[str, int]] = []
    for name in ("_move_units", "_zero_units", "_write_int32"):
        play = getattr(host_commands, name)

        def noted(
            grid: npt.NDArray[np.uint8],
            *units: npt.NDArray[np.int64],
            name: str = name,
            play: Callable[..., None] = play,
        ) -> None:
            assert [one.tolist() for one in units] in ([[0]], [[0], [0]])
            ran.append((name, grid.strides[0] if name != "_write_int32" else len(grid)))
            play(grid, *units)

        monkeypatch.setattr(host_commands, name, noted)
    rank.applier.prewarm()
    rank.settle()

    assert ran == [
        item
        for band, table in zip(PLAN.bands, PLAN.region.band_maps, strict=True)
        for item in (
            ("_move_units", band.unit_bytes),
            ("_zero_units", band.unit_bytes),
            ("_write_int32", table.entry_count),
        )
    ]
    changed = (rank.memory.bytes != before).nonzero()[0]
    assert changed.tolist() == list(range(256))  # the widest unit 0, which lies in the sink
    rank.applier.apply(1, outcome([Zero(FULL, Column(0))], columns=[[7]]))


def test_prewarm_refuses_a_plan_whose_sink_does_not_hold_unit_0(rank: SmallRank) -> None:
    plan = structs.replace(PLAN, sink_bytes=255)
    applier = Applier(device=rank.device, memory=rank.memory, plan=plan, stream=rank.stream)
    before = rank.memory.bytes.copy()
    with pytest.raises(ReplyError, match="unit 0 of band state has 256 bytes, the sink 255"):
        applier.prewarm()
    rank.settle()
    assert applier.poisoned is not None
    assert np.array_equal(rank.memory.bytes, before)


def test_effects_of_an_entry_run_in_order(rank: SmallRank) -> None:
    rank.units(FULL)[20] = 20

    rank.applier.apply(
        1,
        outcome(
            [Move(FULL, Column(0), Column(1)), Zero(FULL, Column(0))],
            [Move(FULL, Column(1), Column(2)), Zero(FULL, Column(1))],
            columns=[[20], [21], [22]],
        ),
    )
    rank.settle()

    assert [int(unit[0]) for unit in rank.units(FULL)[20:23]] == [0, 0, 20]


# ---- what is left to the next launch ----


def test_slots_and_rows_for_the_next_launch_add_up_until_they_are_taken(rank: SmallRank) -> None:
    rank.applier.apply(
        1, outcome([ClearSlots(Column(0)), ResetRows(Column(1))], columns=[[20, 21], [1]])
    )
    rank.applier.apply(
        2, outcome([ClearSlots(Column(0)), ResetRows(Column(1))], columns=[[30], [4, 2]])
    )

    work = rank.applier.take_launch_work()

    assert work.clear_slots.tolist() == [20, 21, 30]
    assert work.reset_rows.tolist() == [1, 4, 2]
    assert rank.applier.take_launch_work().empty


def test_launch_work_is_done_on_the_forwards_stream_and_not_before(rank: SmallRank) -> None:
    forward = rank.device.stream("forward")
    rank.applier.apply(
        1, outcome([ClearSlots(Column(0)), ResetRows(Column(1))], columns=[[20], [3]])
    )
    rank.settle()
    assert set(rank.units(STATE)[20].tolist()) == {0xAB}

    rank.applier.enqueue_launch_work(forward)
    forward.synchronize(DEADLINE_MS)

    assert not any(rank.units(STATE)[20])
    drafts = rank.memory.bytes[14_080 : 14_080 + ROW_COUNT * DRAFT_ROW_BYTES]
    cleared = (drafts.reshape(ROW_COUNT, DRAFT_ROW_BYTES) == 0).all(axis=1)
    assert cleared.tolist() == [False, False, False, True, False]
    assert rank.applier.take_launch_work().empty
    forward.close(DEADLINE_MS)


def test_slots_to_clear_follow_a_move_of_theirs(rank: SmallRank) -> None:
    rank.applier.apply(1, outcome([ClearSlots(Column(0))], columns=[[20, 21, 22]]))
    rank.applier.apply(
        2, outcome([Move(STATE, Column(0), Column(1))], columns=[[30, 22, 20], [40, 41, 42]])
    )

    assert rank.applier.take_launch_work().clear_slots.tolist() == [42, 21, 41]


@pytest.mark.parametrize(
    ("band", "destination"), [(STATE, 21), (FULL, 42), (FULL, 43)], ids=["state", "low", "high"]
)
def test_a_slot_that_a_move_overwrites_is_not_cleared_any_more(
    rank: SmallRank, band: int, destination: int
) -> None:
    rank.applier.apply(1, outcome([ClearSlots(Column(0))], columns=[[20, 21, 22]]))

    rank.applier.apply(
        2, outcome([Move(band, Column(0), Column(1))], columns=[[30], [destination]])
    )

    assert rank.applier.take_launch_work().clear_slots.tolist() == [20, 22]


def test_a_row_that_is_handed_out_names_no_pages_of_the_request_before(rank: SmallRank) -> None:
    rank.applier.clear()
    rank.applier.apply(
        1, outcome([WriteRows(Column(0), Column(1), Column(2))], columns=[[2, 3], [4, 4], [11, 12]])
    )

    rank.applier.apply(2, outcome([ResetRows(Column(0))], columns=[[2]]))
    rank.settle()

    assert rank.int32(13_312, ROW_COUNT) == [0, 0, 0, 5 * PAGE_TOKENS, 0]


# ---- progress, position, redo ----


def test_the_progress_word_names_the_last_segment(rank: SmallRank) -> None:
    rank.applier.apply_reply(
        1, [outcome(), outcome([Zero(FULL, Column(0))], [Zero(FULL, Column(0))], columns=[[9]])]
    )
    rank.settle()

    assert read_progress(rank.memory, PLAN) == (2, 1)
    assert rank.applier.applied == 2


def test_entries_without_effects_move_the_progress_word_too(rank: SmallRank) -> None:
    rank.applier.apply_reply(
        1, [outcome([Zero(FULL, Column(0))], columns=[[9]]), outcome(), outcome()]
    )
    rank.settle()

    assert read_progress(rank.memory, PLAN) == (3, 0)


@pytest.mark.case("64")
def test_a_reply_is_one_submission(rank: SmallRank, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueued: list[Commands] = []

    def note(_stream: HostStream, commands: Commands) -> None:
        enqueued.append(commands)

    monkeypatch.setattr(HostStream, "enqueue", note)

    rank.applier.apply_reply(
        1,
        [
            outcome(
                [Zero(FULL, Column(0))], [WriteMap(FULL, Column(0), Column(1))], columns=[[9], [10]]
            ),
            outcome(),
            outcome([Zero(FULL, Column(0))], columns=[[11]]),
        ],
    )

    assert len(enqueued) == 1


def test_a_reply_without_entries_changes_nothing(rank: SmallRank) -> None:
    rank.applier.apply_reply(1, [])

    assert rank.applier.applied == 0


@pytest.mark.parametrize("position", [0, 1, 2, 4])
def test_a_gap_or_a_repetition_is_refused_and_poisons(rank: SmallRank, position: int) -> None:
    rank.applier.apply_reply(1, [outcome(), outcome()])

    with pytest.raises(ReplyError, match=re.escape("stub.cursor_gapless: position 3 is next")):
        rank.applier.apply(position, outcome())

    assert rank.applier.applied == 2
    assert rank.applier.poisoned is not None


RELIEF = outcome(
    [Move(FULL, Column(0), Column(1)), WriteMap(FULL, Column(4), Column(1))],
    [Move(FULL, Column(2), Column(0)), WriteMap(FULL, Column(5), Column(0))],
    [Zero(FULL, Column(2)), WriteMap(FULL, Column(4), Column(2))],
    [Move(FULL, Column(3), Column(2))],
    columns=[[20], [21], [22], [23], [1], [2]],
)
"""Each segment writes what the one before it read, as a relief that reuses vacated units does."""


def prepared_for_relief() -> SmallRank:
    rank = SmallRank()
    for unit in (20, 21, 22, 23):
        rank.units(FULL)[unit] = unit
    rank.applier.clear()
    return rank


@pytest.mark.parametrize(
    ("broken_index", "effects_done"), [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1)]
)
def test_redoing_the_unconfirmed_segment_gives_the_bytes_of_an_unbroken_run(
    broken_index: int, effects_done: int
) -> None:
    unbroken, broken = prepared_for_relief(), prepared_for_relief()
    unbroken.new_applier(applied=6).apply(7, RELIEF)
    unbroken.settle()
    # The process is killed inside a segment: some of its effects are done, its end is not written.
    if broken_index:
        confirmed_part = structs.replace(RELIEF, segments=RELIEF.segments[:broken_index])
        broken.new_applier(applied=6).apply(7, confirmed_part)
    broken.settle()
    progress = PLAN.region.progress.offset_bytes
    word = broken.memory.bytes[progress : progress + 16].copy()
    partly = RELIEF.segments[broken_index][:effects_done]
    broken.new_applier(applied=6).apply(7, structs.replace(RELIEF, segments=(partly,)))
    broken.settle()
    broken.memory.bytes[progress : progress + 16] = word

    confirmed = read_progress(broken.memory, PLAN)
    broken.new_applier(applied=6, segment_start_index=broken_index).apply(7, RELIEF)
    broken.settle()

    assert confirmed == ((7, broken_index - 1) if broken_index else (0, 0))
    np.testing.assert_array_equal(broken.memory.bytes, unbroken.memory.bytes)
    assert read_progress(broken.memory, PLAN) == (7, 3)
    unbroken.close()
    broken.close()


def test_segments_that_are_confirmed_are_not_redone(rank: SmallRank) -> None:
    applier = rank.new_applier(applied=4, segment_start_index=1)
    entry = outcome([Zero(FULL, Column(0))], [Zero(FULL, Column(1))], columns=[[20], [21]])

    applier.apply_reply(5, [entry, outcome([Zero(FULL, Column(0))], columns=[[22]])])
    rank.settle()

    assert [int(unit[0]) for unit in rank.units(FULL)[20:23]] == [0xAB, 0, 0]


def test_a_log_that_goes_on_keeps_the_progress_word_when_tables_are_cleared(
    rank: SmallRank,
) -> None:
    rank.applier.apply_reply(1, [outcome(), outcome([Zero(FULL, Column(0))], columns=[[9]])])
    applier = rank.new_applier(applied=7)

    applier.clear()
    rank.settle()

    assert read_progress(rank.memory, PLAN) == (2, 0)
    assert not any(rank.int32(12_288, 10) + rank.int32(12_544, 96))


def test_a_fork_applies_nothing(rank: SmallRank) -> None:
    assert in_fork(lambda: rank.applier.apply(1, outcome())) == 0
    assert in_fork(rank.applier.clear) == 0

    rank.applier.apply(1, outcome())


# ---- waits ----


def test_effects_behind_a_wait_run_after_the_step(rank: SmallRank) -> None:
    forward = rank.device.stream("forward")
    opened = threading.Event()
    entered = threading.Event()

    def step() -> None:
        entered.set()
        assert opened.wait(DEADLINE_MS / 1000)

    forward.submit(step)
    rank.applier.note_step(1, forward.record())
    assert entered.wait(DEADLINE_MS / 1000)
    rank.applier.apply(
        1, outcome([Zero(FULL, Column(0)), Wait(1), Zero(FULL, Column(1))], columns=[[20], [21]])
    )

    with pytest.raises(DeviceError, match="within 50 ms"):
        rank.stream.synchronize(50)
    assert [int(unit[0]) for unit in rank.units(FULL)[20:22]] == [0, 0xAB]
    opened.set()
    rank.settle()
    assert [int(unit[0]) for unit in rank.units(FULL)[20:22]] == [0, 0]
    forward.close(DEADLINE_MS)


def test_a_wait_for_a_step_that_was_never_launched_poisons(rank: SmallRank) -> None:
    rank.applier.note_step(1, rank.stream.record())

    with pytest.raises(ReplyError, match="waits for step 2"):
        rank.applier.apply(1, outcome([Wait(2)]))

    assert rank.applier.poisoned is not None
