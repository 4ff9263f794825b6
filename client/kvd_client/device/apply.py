"""Applying the log: carry out the effects of decided entries on this rank's allocator stream.

Effects are enqueued in the order of positions, without a gap (`stub.cursor_gapless`), segment by
segment; a segment with a move, and a reply, end with a write of (position, segment) to the progress
word, so that whoever comes after a crash knows what to redo. All entries of a reply become one
submission.

A reply is checked whole before any of it is enqueued. If it cannot be carried out, the applier is
poisoned: the memory is then behind the log for good, and every later call says so.

Where forwards run on another stream, four waits order the two. F stands for the forwards' stream
and A for the allocator's:

    F waits A       at a launch, up to the position that the step was launched at and no further
    A waits F       before the first effects behind a launch: until the step reads tables and rows
                    no more, or until its whole end where it did not say so
    A waits a step  before the effects of entries that were decided without knowledge of it
    A waits a step  where an effect says so

F runs steps in the order of their numbers, so a wait for one step covers all before it. A wait may
be left out when its event is reached already; whether it is decides nothing else.
"""

import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NewType

import numpy as np

from kvd_client.device.assembly import (
    NO_LAUNCH_WORK,
    Assembly,
    LaunchWork,
    Piece,
    WaitFor,
    Workplace,
)
from kvd_client.device.columns import Columns, decode_columns
from kvd_client.device.copies import CopyWork, HostCopies, WaitForCopy
from kvd_client.device.fences import FencePage
from kvd_client.device.known_replies import TakesWaits, Waits, known_reply
from kvd_client.device.places import PlanPlaces
from kvd_client.device.port import Device, Event, Memory, Stream
from kvd_client.device.recipes import Recipes
from kvd_client.errors import ForkedError, PoisonedError, ReplyError
from kvd_client.process import PROCESS
from kvd_proto.memory import StoragePlan
from kvd_proto.outcomes import Outcome
from kvd_proto.scalars import Position

SegmentIndex = NewType("SegmentIndex", int)
"""Place of a segment among those of its entry."""

_PROGRESS = struct.Struct("=QQ")


class Progress(NamedTuple):
    """What the progress word says: everything up to this segment of this entry is done."""

    position: Position
    segment_index: SegmentIndex


def read_progress(memory: Memory, plan: StoragePlan) -> Progress:
    """Return what the progress word of a rank's memory says."""
    start = plan.region.progress.offset_bytes
    position, segment_index = _PROGRESS.unpack(memory.read_bytes(start, start + _PROGRESS.size))
    return Progress(Position(position), SegmentIndex(segment_index))


class StepGuard(NamedTuple):
    """From this entry of a reply on, effects run behind the whole end of a step."""

    entry_index: int
    step: int


class AssembledReply(NamedTuple):
    """Entries that were checked: what to enqueue for them, and what they leave to do."""

    first_position: int
    entry_count: int
    pieces: Sequence[Piece]
    launch_work: LaunchWork


class Applier:
    """Carries out effects on one stream of one rank; the only writer of its tables.

    Invariants:
    stub.cursor_gapless: the next entry applied stands at ``applied + 1``

    ``_ends`` holds the ends of launched steps that the stream does not wait for yet and that were
    not seen as reached, oldest first.
    """

    def __init__(
        self,
        *,
        device: Device,
        memory: Memory,
        plan: StoragePlan,
        stream: Stream,
        applied: int = 0,
        segment_start_index: int = 0,
        overlaps: bool = False,
        follows: bool = False,
        fences: FencePage | None = None,
    ) -> None:
        """Start behind ``applied``.

        With ``overlaps`` forwards run beside the stream and wait for `position_event`. With
        ``follows`` the leader may have launched steps that this rank never did.

        After a crash, ``applied`` is one less than the position in the progress word, and
        ``segment_start_index`` one more than its segment: earlier segments of the first entry are
        confirmed and are not redone.
        """
        if memory.size_bytes < plan.total_bytes:
            raise ReplyError(
                f"the plan needs {plan.total_bytes} bytes, the memory has {memory.size_bytes}"
            )
        self._device = device
        self._memory = memory
        self._plan = plan
        self._places = PlanPlaces(plan)
        self.copies = HostCopies(device, memory, plan, fences)
        """Loads and backups, and the host pools they work with."""
        self._workplace = Workplace(
            device=device,
            memory=memory,
            places=self._places,
            recipes=Recipes(self._places),
            check_copy=self.copies.check,
        )
        self._stream = stream
        self._applied = Position(applied)
        self._segment_start_index = segment_start_index
        self._overlaps = overlaps
        self._follows = follows
        self._poisoned: str | None = None
        self._position_event: Event | None = None
        self._barrier: Event | None = None
        self._ends: dict[int, Event] = {}
        self._pid = PROCESS.pid
        self._newest_step = 0
        self._forward_end: Event | None = None
        """The end of the newest launched step, whether the stream waits for it or not: a copy that
        precedes such a wait in a reply does not."""
        self._launch_work = NO_LAUNCH_WORK

    @property
    def applied(self) -> Position:
        """Return the position of the last entry whose effects are enqueued."""
        return self._applied

    @property
    def poisoned(self) -> str | None:
        """Return why nothing can be applied any more, or None."""
        return self._poisoned

    def poison(self, cause: str) -> None:
        """Refuse everything from now on; the first cause stays."""
        self._poisoned = self._poisoned or cause

    @contextmanager
    def _whole(self, what: str) -> Generator[None]:
        """Guard work that must not be left half done: leaving it by any exception poisons.

        Interrupts of the user count too: whether the work was enqueued is then unknown.
        """
        self.check_usable()
        try:
            yield
        except BaseException as error:
            self.poison(f"{what}: {type(error).__name__}: {error}")
            raise

    def clear(self) -> None:
        """Enqueue zeroing of sink and tables: the first act on memory of unknown contents.

        The progress word starts at zero with the log. A log that goes on from an earlier one keeps
        the word, which is behind all its entries.
        """
        with self._whole("tables cannot be cleared"):
            commands = self._device.commands(self._memory)
            if not self._applied:
                commands.write_words(
                    offset_bytes=self._plan.region.progress.offset_bytes, values=(0, 0)
                )
            commands.zero_bytes(start_bytes=0, end_bytes=self._plan.sink_bytes)
            for start_bytes, table_bytes in _table_extents(self._plan):
                commands.zero_bytes(start_bytes=start_bytes, end_bytes=start_bytes + table_bytes)
            self._stream.enqueue(commands)
            self._mark_position()

    def prewarm(self) -> None:
        """Enqueue a copy, a zeroing and a table write for every band, all of them on the sink.

        Unit 0 of every band lies in the sink, and entry 0 of every map is always 0, so nothing that
        anybody relies on changes. Whatever a device sets up on first use, such as kernels that are
        loaded or staging that is allocated, is there before the first move of a running batch.
        """
        with self._whole("the sink cannot be worked on"):
            commands = self._device.commands(self._memory)
            sink = np.zeros(1, dtype=np.int64)
            for band, table in zip(self._plan.bands, self._plan.region.band_maps, strict=True):
                if band.unit_bytes > self._plan.sink_bytes:
                    raise ReplyError(
                        f"unit 0 of band {band.name} has {band.unit_bytes} bytes, "
                        f"the sink {self._plan.sink_bytes}; a plan's sink holds unit 0 of each band"
                    )
                commands.move_units(
                    base_bytes=0, unit_bytes=band.unit_bytes, sources=sink, destinations=sink
                )
                commands.zero_units(base_bytes=0, unit_bytes=band.unit_bytes, units=sink)
                commands.write_int32(
                    offset_bytes=table.offset_bytes,
                    entry_count=table.entry_count,
                    indices=sink,
                    values=sink,
                )
            self._stream.enqueue(commands)

    def apply(self, position: int, outcome: Outcome) -> None:
        """Enqueue the effects of one entry; see `apply_reply`."""
        self.apply_reply(position, (outcome,))

    def apply_reply(
        self,
        first_position: int,
        outcomes: Sequence[Outcome],
        columns: Sequence[Columns] | None = None,
    ) -> None:
        """Enqueue the effects of consecutive entries as one submission.

        ``columns`` are the decoded columns of each outcome, where the caller has them already.
        Raises PoisonedError after an earlier failure; otherwise whatever went wrong, and then the
        applier is poisoned.
        """
        self.enqueue_reply(self.assemble_reply(first_position, outcomes, columns))

    def assemble_reply(
        self,
        first_position: int,
        outcomes: Sequence[Outcome],
        columns: Sequence[Columns] | None = None,
        guard: StepGuard | None = None,
    ) -> AssembledReply:
        """Check consecutive entries and return what `enqueue_reply` takes; nothing is enqueued yet.

        Takes and raises what `apply_reply` does; ``guard`` names a step whose whole end the effects
        from one of the entries on have to wait for.
        """
        self.check_usable()
        try:
            if first_position != self._applied + 1:
                raise ReplyError(
                    f"stub.cursor_gapless: position {self._applied + 1} is next, "
                    f"and an entry at {first_position} came"
                )
            if columns is None:
                columns = decode_columns(outcomes)
            known = None if guard is not None else self._known(first_position, outcomes, columns)
            if known is not None:
                return AssembledReply(first_position, len(outcomes), known, NO_LAUNCH_WORK)
            assembly = self._assemble(first_position, outcomes, columns, guard)
        except BaseException as error:
            self._poison_by_entries(first_position, error)
            raise
        work = assembly.launch_work()
        return AssembledReply(first_position, len(outcomes), assembly.pieces, work)

    def enqueue_reply(self, reply: AssembledReply) -> None:
        """Enqueue what `assemble_reply` returned last; raises PoisonedError or whatever went wrong.

        On a host stream this wakes the thread that plays it, which then competes for the
        interpreter: whatever else is to be done with the reply is better done before.
        """
        self.check_usable()
        try:
            assert reply.first_position == self._applied + 1, "another reply came in between"
            if not reply.entry_count:
                return
            for piece in reply.pieces:
                self._enqueue(piece)
            self._launch_work = reply.launch_work
            self._segment_start_index = 0
            self._applied = Position(self._applied + reply.entry_count)
            self._mark_position()
        except BaseException as error:
            self._poison_by_entries(reply.first_position, error)
            raise

    def _enqueue(self, piece: Piece) -> None:
        if isinstance(piece, WaitFor):
            self._stream.wait(piece.event)
        elif isinstance(piece, WaitForCopy):
            end = self.copies.end_of(piece.copy)
            if end is not None:
                self._stream.wait(end)
        elif isinstance(piece, CopyWork):
            # Every forward launched so far is recorded: effects beyond one that is not are queued.
            behind = [self._stream.record()]
            if self._forward_end is not None and not self._forward_end.reached:
                behind.append(self._forward_end)
            self.copies.start(piece, behind)
        else:
            self._stream.enqueue(piece)

    @property
    def position_event(self) -> Event | None:
        """Return the event behind the effects up to ``applied``.

        None without overlap, and as long as nothing was applied or cleared.

        It was recorded when they were enqueued, so whatever the stream was given since is not
        waited for.
        """
        return self._position_event

    def note_step(self, step: int, end: Event, *, barrier: Event | None = None) -> None:
        """Take note of a launched step and the event at its end, for effects that wait for it.

        ``barrier`` is what the next effects wait for in any case: the end of the step's reads, or
        the end itself. A later step's barrier takes its place, because it lies behind it.
        """
        self._newest_step = step
        self._forward_end = self._ends[step] = end
        if barrier is not None:
            self._barrier = barrier
        for earlier in list(self._ends):
            if not self._ends[earlier].reached:
                break
            del self._ends[earlier]

    def note_ordered_step(self, step: int) -> None:
        """Take note of a launched step that everything enqueued from now on runs behind."""
        self._newest_step = step
        self._forward_end = None

    def take_launch_work(self) -> LaunchWork:
        """Return what effects asked of the next launch, and forget it."""
        self.check_usable()
        work = self._launch_work
        self._launch_work = NO_LAUNCH_WORK
        return work

    def enqueue_launch_work(self, stream: Stream) -> LaunchWork:
        """Take the launch work and enqueue it on the forward's stream: slots and rows are zeroed.

        Returns what was enqueued, for state of the engine that belongs to the same rows.
        """
        with self._whole("work of the launch cannot be enqueued"):
            work = self.take_launch_work()
            if work.empty:
                return work
            commands = self._device.commands(self._memory)
            state = self._places.state
            if state is not None:
                commands.zero_units(
                    base_bytes=0, unit_bytes=state.unit_bytes, units=work.clear_slots
                )
            drafts = self._plan.region.draft_states
            if drafts is not None:
                commands.zero_units(
                    base_bytes=drafts.offset_bytes,
                    unit_bytes=drafts.table_bytes // self._plan.row_count,
                    units=work.reset_rows,
                )
            stream.enqueue(commands)
            return work

    def check_usable(self) -> None:
        """Raise PoisonedError if an earlier failure left the memory behind the log.

        Raises ForkedError in a fork, which must not work on the rank's memory beside the rank.
        """
        if PROCESS.pid != self._pid:
            raise ForkedError(
                f"effects are applied by process {self._pid}; process {PROCESS.pid} is a fork of it"
            )
        if self._poisoned is not None:
            raise PoisonedError(f"this rank is poisoned: {self._poisoned}")

    def _known(
        self, first_position: int, outcomes: Sequence[Outcome], columns: Sequence[Columns]
    ) -> Sequence[Piece] | None:
        """Return all there is to enqueue of a reply of known shape; None for any other.

        With work left to the next launch, or a first entry that is partly done, it is assembled
        effect by effect. All that it waits for comes first: steps that are launched end whatever
        the allocator does, so nothing but time is lost by it.
        """
        if (
            self._segment_start_index
            or self._launch_work is not NO_LAUNCH_WORK
            or not self._device.takes_recipes
        ):
            return None
        found = known_reply(
            outcomes, columns, self._workplace.recipes, newest_step=self._newest_step
        )
        if found is None:
            return None
        recipe, whole, waited_step = found
        commands = self._device.commands(self._memory)
        if not commands.add_recipe(recipe, whole.lists, whole.first_list):
            return None
        last = outcomes[-1].segments
        commands.write_words(
            offset_bytes=self._places.progress_offset_bytes,
            values=(first_position + len(outcomes) - 1, len(last) - 1 if last else 0),
        )
        if self._barrier is None and not self._ends:
            return (commands,)
        waits = Waits()
        if self._barrier is not None:
            self._add_barrier(waits, self._barrier)
        if waited_step:
            self._add_step_wait(waits, waited_step)
        return (*waits.pieces, commands)

    def _assemble(
        self,
        first_position: int,
        outcomes: Sequence[Outcome],
        columns: Sequence[Columns],
        guard: StepGuard | None,
    ) -> Assembly:
        """Return everything to enqueue, checked; nothing is enqueued yet."""
        assembly = Assembly(self._workplace, self._launch_work, self._add_step_wait)
        start_index = self._segment_start_index
        for place, outcome in enumerate(outcomes):
            segments = outcome.segments
            if segments:
                if self._barrier is not None:
                    self._add_barrier(assembly, self._barrier)
                if guard is not None and place >= guard.entry_index:
                    self._add_step_wait(assembly, guard.step)
                    guard = None
                assembly.add_entry(first_position + place, segments, columns[place], start_index)
            start_index = 0
        if outcomes and not outcomes[-1].segments:
            assembly.end_entry(first_position + len(outcomes) - 1)
        assembly.finish()
        return assembly

    def _add_barrier(self, assembly: TakesWaits, barrier: Event) -> None:
        """Have what is added next run behind the reads of the steps launched before it."""
        self._barrier = None
        if not barrier.reached:
            assembly.add_wait(barrier)
        if barrier is self._ends.get(self._newest_step):
            self._note_waited(self._newest_step)

    def _add_step_wait(self, assembly: TakesWaits, step: int) -> None:
        """Have what is added next run behind the whole end of this rank's own step.

        Raises ReplyError for a step that was never launched here. A follower may have been led past
        a step: it cannot launch it any more, so there is nothing of it to wait for.
        """
        if step > self._newest_step and not self._follows:
            raise ReplyError(
                f"an effect waits for step {step}; the newest that this rank launched is "
                f"{self._newest_step}"
            )
        if not self._ends:
            return
        earlier = [one for one in self._ends if one <= step]
        if earlier and not self._ends[earlier[-1]].reached:
            assembly.add_wait(self._ends[earlier[-1]])
        self._note_waited(step)

    def _note_waited(self, step: int) -> None:
        for one in [one for one in self._ends if one <= step]:
            del self._ends[one]

    def _poison_by_entries(self, first_position: int, error: BaseException) -> None:
        """Do what `_whole` does; written out where every microsecond is one of a decode step."""
        self.poison(
            f"entries from position {first_position} cannot be applied: "
            f"{type(error).__name__}: {error}"
        )

    def _mark_position(self) -> None:
        if self._overlaps:
            self._position_event = self._stream.record()


def _table_extents(plan: StoragePlan) -> list[tuple[int, int]]:
    """Return start and size in bytes of every table that has to start out as zero."""
    region = plan.region
    tables = [region.request_table, region.row_lengths]
    if region.state_table is not None:
        tables.append(region.state_table)
    extents = [(table.offset_bytes, table.table_bytes) for table in tables]
    return extents + [(band.offset_bytes, band.entry_count * 4) for band in region.band_maps]
