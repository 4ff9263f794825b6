"""The applier: effects become the right bytes, in order, without a gap, or the rank is poisoned."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from kvd_client.device.apply import Applier, read_progress
from kvd_client.device.assembly import NO_COLUMNS, decode_columns
from kvd_client.device.descriptors import create_memory
from kvd_client.device.host.device import HostDevice
from kvd_client.device.host.memory import HostMemory
from kvd_client.device.host.stream import HostStream
from kvd_client.device.port import Commands, Event, IntArray, Memory
from kvd_client.errors import DeviceError, PoisonedError, ReplyError
from kvd_proto.memory import (
    BandMap,
    BandPlan,
    DType,
    Lifetime,
    RegionPlan,
    StoragePlan,
    TablePlan,
)
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    ClearSlots,
    Copy,
    Done,
    Move,
    Outcome,
    ResetRows,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
)

DEADLINE_MS = 30_000
ARENA_BYTES = 12_288
TOTAL_BYTES = 20_480
STATE, FULL = 0, 1
ROW_COUNT, ROW_PAGES, PAGE_TOKENS = 5, 6, 4
DRAFT_ROW_BYTES = 64


def table(name: str, offset_bytes: int, dtype: DType, rows: int, columns: int) -> TablePlan:
    return TablePlan(
        name=name,
        offset_bytes=offset_bytes,
        dtype=dtype,
        row_count=rows,
        column_count=columns,
    )


PLAN = StoragePlan(
    stage_index=0,
    arena_bytes=ARENA_BYTES,
    total_bytes=TOTAL_BYTES,
    sink_bytes=512,
    page_tokens=PAGE_TOKENS,
    context_tokens=ROW_PAGES * PAGE_TOKENS,
    row_count=ROW_COUNT,
    row_pages=ROW_PAGES,
    virtual_page_count=96,
    virtual_slot_count=10,
    bands=(
        BandPlan(
            name="state",
            lifetime=Lifetime.STATE,
            chain_index=0,
            entry_bytes=256,
            unit_bytes=256,
            page_tokens=1,
            unit_index_min=2,
            unit_index_end_count=48,
        ),
        BandPlan(
            name="full",
            lifetime=Lifetime.FULL,
            chain_index=1,
            entry_bytes=32,
            unit_bytes=128,
            page_tokens=PAGE_TOKENS,
            unit_index_min=4,
            unit_index_end_count=96,
        ),
    ),
    views=(),
    region=RegionPlan(
        band_maps=(
            BandMap(band="state", offset_bytes=12_288, entry_count=10),
            BandMap(band="full", offset_bytes=12_544, entry_count=96),
        ),
        request_table=table("request_table", 13_056, DType.INT32, ROW_COUNT, ROW_PAGES),
        row_lengths=table("row_lengths", 13_312, DType.INT32, ROW_COUNT, 1),
        state_table=table("state_table", 13_568, DType.INT32, ROW_COUNT, 2),
        progress=table("progress", 13_824, DType.UINT64, 1, 2),
        draft_states=table(
            "draft_states", 14_080, DType.UINT8, ROW_COUNT * 2, DRAFT_ROW_BYTES // 2
        ),
        scratch=table("scratch", 16_384, DType.UINT8, 1, 4096),
    ),
)


def outcome(*segments: Sequence[AnyEffect], columns: Sequence[Sequence[int]] = ()) -> Outcome:
    flat = np.array([n for column in columns for n in column], dtype="<i4")
    return Outcome(
        result=Done(),
        segments=tuple(tuple(segment) for segment in segments),
        lengths=tuple(len(column) for column in columns),
        columns=flat.tobytes(),
    )


class Rank:
    """Memory, stream and applier of one rank, and readers of its tables."""

    def __init__(self) -> None:
        fd = create_memory("arena", TOTAL_BYTES)
        self.device = HostDevice()
        self.memory = self.device.map(fd, TOTAL_BYTES)
        os.close(fd)
        self.memory.bytes[:] = 0xAB
        self.stream = self.device.stream("allocator")
        self.applier = self.new_applier()

    def new_applier(self, *, applied: int = 0, segment_start_index: int = 0) -> Applier:
        return Applier(
            device=self.device,
            memory=self.memory,
            plan=PLAN,
            stream=self.stream,
            applied=applied,
            segment_start_index=segment_start_index,
        )

    def settle(self) -> None:
        self.stream.synchronize(DEADLINE_MS)

    def units(self, band: int) -> npt.NDArray[np.uint8]:
        unit_bytes = PLAN.bands[band].unit_bytes
        return self.memory.bytes[:ARENA_BYTES].reshape(-1, unit_bytes)

    def int32(self, offset_bytes: int, count: int) -> list[int]:
        area = self.memory.bytes[offset_bytes : offset_bytes + 4 * count]
        return [int(number) for number in area.view(np.int32)]

    def close(self) -> None:
        self.stream.close(DEADLINE_MS)
        self.memory.close()


@pytest.fixture
def rank() -> Iterator[Rank]:
    rank = Rank()
    yield rank
    rank.close()


# ---- each effect ----


def test_zero_fills_whole_units_of_its_band_only(rank: Rank) -> None:
    rank.applier.apply(1, outcome([Zero(FULL, 0)], columns=[[7, 9, 8, 40]]))
    rank.settle()

    zeroed = (rank.units(FULL) == 0).all(axis=1)
    assert zeroed.nonzero()[0].tolist() == [7, 8, 9, 40]
    assert np.count_nonzero(rank.memory.bytes == 0) - 4 * 128 == 16 - 1  # the progress words


def test_write_map_binds_and_unbinds(rank: Rank) -> None:
    rank.applier.clear()
    rank.applier.apply(1, outcome([WriteMap(FULL, 0, 1)], columns=[[1, 95, 3], [30, 31, 32]]))
    rank.applier.apply(2, outcome([WriteMap(FULL, 0)], columns=[[95]]))
    rank.settle()

    full_map = rank.int32(12_544, 96)
    assert {virtual: unit for virtual, unit in enumerate(full_map) if unit} == {1: 30, 3: 32}


def test_write_map_of_the_state_band_writes_that_bands_map(rank: Rank) -> None:
    rank.applier.clear()
    rank.applier.apply(1, outcome([WriteMap(STATE, 0, 1)], columns=[[2], [40]]))
    rank.settle()

    assert rank.int32(12_288, 10) == [0, 0, 40, 0, 0, 0, 0, 0, 0, 0]
    assert not any(rank.int32(12_544, 96))


def test_write_rows_writes_pages_and_how_far_the_rows_reach(rank: Rank) -> None:
    rank.applier.clear()
    rank.applier.apply(
        1, outcome([WriteRows(0, 1, 2)], columns=[[1, 1, 4], [0, 1, 5], [11, 12, 13]])
    )
    rank.settle()

    rows = np.array(rank.int32(13_056, ROW_COUNT * ROW_PAGES)).reshape(ROW_COUNT, ROW_PAGES)
    assert rows[1].tolist() == [11, 12, 0, 0, 0, 0]
    assert rows[4].tolist() == [0, 0, 0, 0, 0, 13]
    assert np.count_nonzero(rows) == 3
    assert rank.int32(13_312, ROW_COUNT) == [0, 2 * PAGE_TOKENS, 0, 0, 6 * PAGE_TOKENS]


def test_write_slots_writes_the_working_slot_of_rows(rank: Rank) -> None:
    rank.applier.clear()
    rank.applier.apply(1, outcome([WriteSlots(0, 1)], columns=[[1, 3], [9, 2]]))
    rank.settle()

    assert rank.int32(13_568, ROW_COUNT * 2) == [0, 0, 9, 0, 0, 0, 2, 0, 0, 0]


def test_move_copies_units_of_its_band(rank: Rank) -> None:
    rank.units(FULL)[20] = 20
    rank.units(FULL)[21] = 21

    rank.applier.apply(1, outcome([Move(FULL, 0, 1)], columns=[[20, 21], [50, 49]]))
    rank.settle()

    assert set(rank.units(FULL)[50].tolist()) == {20}
    assert set(rank.units(FULL)[49].tolist()) == {21}
    assert set(rank.units(FULL)[20].tolist()) == {20}


def test_clear_zeroes_sink_and_tables_and_leaves_the_bands(rank: Rank) -> None:
    rank.applier.clear()
    rank.settle()

    assert not any(rank.memory.bytes[:512])
    assert set(rank.memory.bytes[512:ARENA_BYTES].tolist()) == {0xAB}
    assert not any(rank.int32(13_056, ROW_COUNT * ROW_PAGES))
    assert not any(rank.int32(13_312, ROW_COUNT))
    assert not any(rank.int32(13_568, ROW_COUNT * 2))
    assert not any(rank.int32(12_288, 10) + rank.int32(12_544, 96))
    assert read_progress(rank.memory, PLAN) == (0, 0)


def test_effects_of_an_entry_run_in_order(rank: Rank) -> None:
    rank.units(FULL)[20] = 20

    rank.applier.apply(
        1,
        outcome(
            [Move(FULL, 0, 1), Zero(FULL, 0)],
            [Move(FULL, 1, 2), Zero(FULL, 1)],
            columns=[[20], [21], [22]],
        ),
    )
    rank.settle()

    assert [int(unit[0]) for unit in rank.units(FULL)[20:23]] == [0, 0, 20]


# ---- what is left to the next launch ----


def test_slots_and_rows_for_the_next_launch_add_up_until_they_are_taken(rank: Rank) -> None:
    rank.applier.apply(1, outcome([ClearSlots(0), ResetRows(1)], columns=[[20, 21], [1]]))
    rank.applier.apply(2, outcome([ClearSlots(0), ResetRows(1)], columns=[[30], [4, 2]]))

    work = rank.applier.take_launch_work()

    assert work.clear_slots.tolist() == [20, 21, 30]
    assert work.reset_rows.tolist() == [1, 4, 2]
    assert rank.applier.take_launch_work().empty


def test_launch_work_is_done_on_the_forwards_stream_and_not_before(rank: Rank) -> None:
    forward = rank.device.stream("forward")
    rank.applier.apply(1, outcome([ClearSlots(0), ResetRows(1)], columns=[[20], [3]]))
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


def test_slots_to_clear_follow_a_move_of_theirs(rank: Rank) -> None:
    rank.applier.apply(1, outcome([ClearSlots(0)], columns=[[20, 21, 22]]))
    rank.applier.apply(2, outcome([Move(STATE, 0, 1)], columns=[[30, 22, 20], [40, 41, 42]]))

    assert rank.applier.take_launch_work().clear_slots.tolist() == [42, 21, 41]


# ---- progress, position, redo ----


def test_the_progress_word_names_the_last_segment(rank: Rank) -> None:
    rank.applier.apply_reply(
        1, [outcome(), outcome([Zero(FULL, 0)], [Zero(FULL, 0)], columns=[[9]])]
    )
    rank.settle()

    assert read_progress(rank.memory, PLAN) == (2, 1)
    assert rank.applier.applied == 2


def test_entries_without_effects_move_the_progress_word_too(rank: Rank) -> None:
    rank.applier.apply_reply(1, [outcome([Zero(FULL, 0)], columns=[[9]]), outcome(), outcome()])
    rank.settle()

    assert read_progress(rank.memory, PLAN) == (3, 0)


def test_a_reply_is_one_submission(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueued: list[Commands] = []

    def note(_stream: HostStream, commands: Commands) -> None:
        enqueued.append(commands)

    monkeypatch.setattr(HostStream, "enqueue", note)

    rank.applier.apply_reply(
        1,
        [
            outcome([Zero(FULL, 0)], [WriteMap(FULL, 0, 1)], columns=[[9], [10]]),
            outcome(),
            outcome([Zero(FULL, 0)], columns=[[11]]),
        ],
    )

    assert len(enqueued) == 1


def test_a_reply_without_entries_changes_nothing(rank: Rank) -> None:
    rank.applier.apply_reply(1, [])

    assert rank.applier.applied == 0


@pytest.mark.parametrize("position", [0, 1, 2, 4])
def test_a_gap_or_a_repetition_is_refused_and_poisons(rank: Rank, position: int) -> None:
    rank.applier.apply_reply(1, [outcome(), outcome()])

    with pytest.raises(ReplyError, match=r"stub\.cursor_gapless: position 3 is next"):
        rank.applier.apply(position, outcome())

    assert rank.applier.applied == 2
    assert rank.applier.poisoned is not None


RELIEF = outcome(
    [Move(FULL, 0, 1), WriteMap(FULL, 4, 1)],
    [Move(FULL, 2, 0), WriteMap(FULL, 5, 0)],
    [Zero(FULL, 2), WriteMap(FULL, 4, 2)],
    [Move(FULL, 3, 2)],
    columns=[[20], [21], [22], [23], [1], [2]],
)
"""Each segment writes what the one before it read, as a relief that reuses vacated units does."""


def prepared_for_relief() -> Rank:
    rank = Rank()
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


def test_segments_that_are_confirmed_are_not_redone(rank: Rank) -> None:
    applier = rank.new_applier(applied=4, segment_start_index=1)
    entry = outcome([Zero(FULL, 0)], [Zero(FULL, 1)], columns=[[20], [21]])

    applier.apply_reply(5, [entry, outcome([Zero(FULL, 0)], columns=[[22]])])
    rank.settle()

    assert [int(unit[0]) for unit in rank.units(FULL)[20:23]] == [0xAB, 0, 0]


# ---- waits ----


def test_effects_behind_a_wait_run_after_the_step(rank: Rank) -> None:
    forward = rank.device.stream("forward")
    opened = threading.Event()
    entered = threading.Event()

    def step() -> None:
        entered.set()
        assert opened.wait(DEADLINE_MS / 1000)

    forward.submit(step)
    rank.applier.note_step(1, forward.record())
    assert entered.wait(DEADLINE_MS / 1000)
    rank.applier.apply(1, outcome([Zero(FULL, 0), Wait(1), Zero(FULL, 1)], columns=[[20], [21]]))

    with pytest.raises(DeviceError, match="within 50 ms"):
        rank.stream.synchronize(50)
    assert [int(unit[0]) for unit in rank.units(FULL)[20:22]] == [0, 0xAB]
    opened.set()
    rank.settle()
    assert [int(unit[0]) for unit in rank.units(FULL)[20:22]] == [0, 0]
    forward.close(DEADLINE_MS)


def test_a_wait_for_a_step_that_was_never_launched_poisons(rank: Rank) -> None:
    rank.applier.note_step(1, rank.stream.record())

    with pytest.raises(ReplyError, match="waits for step 2"):
        rank.applier.apply(1, outcome([Wait(2)]))

    assert rank.applier.poisoned is not None


# ---- what does not fit the plan ----


@pytest.mark.parametrize(
    ("effect", "columns", "message"),
    [
        (Zero(FULL, 0), [[9, 96]], r"unit 96 is not within \[4, 96\)"),
        (Zero(FULL, 0), [[3]], r"unit 3 is not within \[4, 96\)"),
        (Zero(FULL, 0), [[-1]], r"unit -1 is not within"),
        (Zero(2, 0), [[9]], "band 2 of 2"),
        (Zero(-1, 0), [[9]], "band -1 of 2"),
        (Zero(FULL, 1), [[9]], "column 1 of 1"),
        (Zero(FULL, NO_COLUMN), [[9]], "column -1 of 1"),
        (WriteMap(FULL, 0), [[0]], r"virtual id 0 is not within \[1, 96\)"),
        (WriteMap(FULL, 0, 1), [[5], [0]], r"unit 0 is not within"),
        (WriteMap(FULL, 0, 1), [[5, 6], [9]], "2 places in a table and 1 values"),
        (WriteRows(0, 1, 2), [[0], [0], [1]], r"request row 0 is not within \[1, 5\)"),
        (WriteRows(0, 1, 2), [[1], [6], [1]], r"place in a row 6 is not within \[0, 6\)"),
        (WriteRows(0, 1, 2), [[1], [0], [96]], r"virtual page 96 is not within \[0, 96\)"),
        (WriteRows(0, 1, 2), [[1, 2], [0], [1]], "2 rows and 1 places"),
        (WriteSlots(0, 1), [[1], [10]], r"state slot id 10 is not within \[0, 10\)"),
        (Move(FULL, 0, 1), [[9], [10, 11]], "1 units cannot move to 2 places"),
        (Move(FULL, 0, 1), [[9, 10], [10, 11]], "source and target"),
        (ClearSlots(0), [[48]], r"unit 48 is not within \[2, 48\)"),
        (ResetRows(0), [[5]], r"request row 5 is not within"),
        (Copy("load", FULL, 0, 0), [[9]], "no host pool"),
    ],
)
def test_an_effect_that_does_not_fit_the_plan_is_refused_before_anything_is_done(
    rank: Rank, effect: AnyEffect, columns: list[list[int]], message: str
) -> None:
    before = rank.memory.bytes.copy()
    good = outcome([Zero(FULL, 0)], columns=[[20]])

    with pytest.raises(ReplyError, match=message):
        rank.applier.apply_reply(1, [good, outcome([effect], columns=columns)])
    rank.settle()

    np.testing.assert_array_equal(rank.memory.bytes, before)
    assert rank.applier.applied == 0
    assert rank.applier.poisoned is not None


def test_columns_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ReplyError, match="hold 2 numbers, their lengths say 3"):
        decode_columns(Outcome(result=Done(), lengths=(1, 2), columns=bytes(8)))
    with pytest.raises(ReplyError, match="7 bytes"):
        decode_columns(Outcome(result=Done(), lengths=(1,), columns=bytes(7)))
    with pytest.raises(ReplyError, match="-1 numbers"):
        decode_columns(Outcome(result=Done(), lengths=(3, -1), columns=bytes(8)))


def test_columns_are_cut_in_order_and_empty_ones_stay_empty() -> None:
    columns = decode_columns(outcome(columns=[[], [4, -2], [], [7], []]))

    assert [columns[i].tolist() for i in range(len(columns))] == [[], [4, -2], [], [7], []]
    assert columns.within(1, -2, 5, "number").tolist() == [4, -2]
    assert columns.within(0, 0, 0, "number").tolist() == []
    with pytest.raises(ReplyError, match=r"number 7 is not within \[0, 7\)"):
        columns.within(3, 0, 7, "number")
    assert len(NO_COLUMNS) == 0


def test_memory_smaller_than_the_plan_is_refused() -> None:
    fd = create_memory("arena", ARENA_BYTES)
    memory = HostMemory(fd, ARENA_BYTES, writable=True)
    os.close(fd)
    stream = HostStream("allocator")

    with pytest.raises(ReplyError, match=f"needs {TOTAL_BYTES} bytes"):
        Applier(device=HostDevice(), memory=memory, plan=PLAN, stream=stream)

    stream.close(DEADLINE_MS)


# ---- poison ----


class PlantedError(Exception):
    """Raised by the faulty device in place of a call."""


class Fault:
    """Counts the calls that reach a device and raises at one of them."""

    def __init__(self, at_call: int | None) -> None:
        self.calls = 0
        self._at_call = at_call

    def pass_through(self) -> None:
        self.calls += 1
        if self.calls - 1 == self._at_call:
            raise PlantedError(f"call {self._at_call}")


class FaultyCommands:
    def __init__(self, inner: Commands, fault: Fault) -> None:
        self.inner = inner
        self._fault = fault

    def zero_bytes(self, *, start_bytes: int, end_bytes: int) -> None:
        self._fault.pass_through()
        self.inner.zero_bytes(start_bytes=start_bytes, end_bytes=end_bytes)

    def zero_units(self, *, base_bytes: int, unit_bytes: int, units: IntArray) -> None:
        self._fault.pass_through()
        self.inner.zero_units(base_bytes=base_bytes, unit_bytes=unit_bytes, units=units)

    def move_units(
        self, *, base_bytes: int, unit_bytes: int, sources: IntArray, destinations: IntArray
    ) -> None:
        self._fault.pass_through()
        self.inner.move_units(
            base_bytes=base_bytes, unit_bytes=unit_bytes, sources=sources, destinations=destinations
        )

    def write_int32(
        self, *, offset_bytes: int, entry_count: int, indices: IntArray, values: IntArray
    ) -> None:
        self._fault.pass_through()
        self.inner.write_int32(
            offset_bytes=offset_bytes, entry_count=entry_count, indices=indices, values=values
        )

    def write_words(self, *, offset_bytes: int, values: tuple[int, int]) -> None:
        self._fault.pass_through()
        self.inner.write_words(offset_bytes=offset_bytes, values=values)


class FaultyStream:
    def __init__(self, inner: HostStream, fault: Fault) -> None:
        self._inner = inner
        self._fault = fault
        self.name = inner.name

    def enqueue(self, commands: Commands) -> None:
        self._fault.pass_through()
        assert isinstance(commands, FaultyCommands)
        self._inner.enqueue(commands.inner)

    def submit(self, work: Callable[[], None]) -> None:
        self._fault.pass_through()
        self._inner.submit(work)

    def record(self) -> Event:
        self._fault.pass_through()
        return self._inner.record()

    def wait(self, event: Event) -> None:
        self._fault.pass_through()
        self._inner.wait(event)

    def synchronize(self, timeout_ms: int) -> None:
        self._inner.synchronize(timeout_ms)

    def close(self, timeout_ms: int) -> None:
        self._inner.close(timeout_ms)


class FaultyDevice(HostDevice):
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def commands(self, memory: Memory) -> FaultyCommands:  # type: ignore[override]
        self._fault.pass_through()
        return FaultyCommands(super().commands(memory), self._fault)


EVERYTHING = outcome(
    [Zero(FULL, 0), WriteMap(FULL, 1, 0), Wait(1), WriteMap(FULL, 1), WriteRows(2, 3, 1)],
    [WriteSlots(2, 2), Move(FULL, 0, 4), ClearSlots(4), ResetRows(2)],
    columns=[[20], [5], [1], [0], [30]],
)
DEVICE_CALLS = 14
"""Two lists of commands, nine commands, two submissions and a wait for EVERYTHING."""


def apply_everything(rank: Rank, fault: Fault) -> Applier:
    applier = Applier(
        device=FaultyDevice(fault),
        memory=rank.memory,
        plan=PLAN,
        stream=FaultyStream(rank.stream, fault),
    )
    applier.note_step(1, rank.stream.record())
    applier.apply(1, EVERYTHING)
    return applier


def test_the_number_of_device_calls_is_the_one_that_faults_are_planted_at(rank: Rank) -> None:
    fault = Fault(at_call=None)

    applier = apply_everything(rank, fault)

    assert fault.calls == DEVICE_CALLS
    assert applier.applied == 1
    assert applier.poisoned is None


@pytest.mark.parametrize("at_call", range(DEVICE_CALLS))
def test_an_exception_at_any_device_call_poisons_for_good(rank: Rank, at_call: int) -> None:
    fault = Fault(at_call)
    applier = Applier(
        device=FaultyDevice(fault),
        memory=rank.memory,
        plan=PLAN,
        stream=FaultyStream(rank.stream, fault),
    )
    applier.note_step(1, rank.stream.record())

    with pytest.raises(PlantedError):
        applier.apply(1, EVERYTHING)

    assert applier.applied == 0
    assert applier.poisoned == (
        f"entries from position 1 cannot be applied: PlantedError: call {at_call}"
    )
    calls: list[Callable[[], object]] = [
        lambda: applier.apply(1, EVERYTHING),
        lambda: applier.apply_reply(1, []),
        applier.clear,
        applier.take_launch_work,
        lambda: applier.enqueue_launch_work(rank.stream),
    ]
    for call in calls:
        with pytest.raises(PoisonedError, match=f"call {at_call}"):
            call()
    assert fault.calls == at_call + 1


def test_a_failure_of_earlier_work_on_the_stream_poisons_the_next_reply(rank: Rank) -> None:
    rank.stream.submit(lambda: np.zeros(1)[5])
    with pytest.raises(DeviceError):
        rank.settle()

    with pytest.raises(DeviceError, match="IndexError"):
        rank.applier.apply(1, outcome())

    assert rank.applier.poisoned is not None


def test_an_interrupt_of_the_user_poisons_too(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: HostStream, commands: Commands) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(HostStream, "enqueue", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rank.applier.apply(1, outcome())

    with pytest.raises(PoisonedError):
        rank.applier.apply(1, outcome())


def test_the_first_cause_of_poison_stays(rank: Rank) -> None:
    rank.applier.poison("first")
    rank.applier.poison("second")

    assert rank.applier.poisoned == "first"
    with pytest.raises(PoisonedError, match="first"):
        rank.applier.check_usable()
