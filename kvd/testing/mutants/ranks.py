"""Faults of ranks: waits, barriers, the launch queue, copies, launch work, progress and redo."""

from typing import Final

from kvd.testing.mutants.fault import Fault, edited

_APPLIER: Final = "kvd_client.device.apply:Applier."
_ASSEMBLY: Final = "kvd_client.device.assembly:Assembly."
_COPIES: Final = "kvd_client.device.copies:HostCopies."
_STEP: Final = "kvd_client.launch:Step."
_CURSOR: Final = "kvd_client.cursor:Cursor."
_BACKLOG: Final = "kvd_client.backlog:Backlog."


ORDER_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "processed-unwaited",
        "a rank calls a step processed once its own forward is over",
        ("kvd_client.session:Session._send_due", "if end is not None:", "if False:"),
    ),
    edited(
        "read-end-barrier",
        "A waits the end of a launched forward's reads",
        (_APPLIER + "_add_barrier", "self._barrier = None", "self._barrier = None; return"),
    ),
    edited(
        "whole-end-barrier",
        "A waits the whole end of a forward that declared no reads",
        (
            _APPLIER + "note_step",
            "if barrier is not None:",
            "if barrier is not None and barrier is not end:",
        ),
    ),
    edited(
        "barrier-of-the-first",
        "of several launched forwards A waits the reads of the last",
        (
            _APPLIER + "note_step",
            "if barrier is not None:",
            "if barrier is not None and self._barrier is None:",
        ),
    ),
    edited(
        "aborted-whole-end",
        "A waits the whole end of a step that was left by an exception",
        (_STEP + "end", "None if aborted else self._reads_end", "self._reads_end"),
    ),
    edited(
        "end-without-overlap",
        "without overlap A waits the end of a forward on another stream",
        (_STEP + "_order_allocator", "if self._forward is not self._allocator:", "if False:"),
    ),
    edited(
        "launch-waits-a",
        "F waits A at a launch",
        (
            _STEP + "_order_forward",
            "if forward is self._allocator:",
            "if forward is self._allocator or self.number > 1:",
        ),
    ),
    edited(
        "launch-waits-a-too-far-back",
        "up to the position that the step was launched at",
        (
            _APPLIER + "_mark_position",
            "self._position_event = self._stream.record()",
            "kept = self.__dict__.get('kept'); self.__dict__['kept'] = self._stream.record(); "
            "self._position_event = kept or self.__dict__['kept']",
        ),
    ),
    edited(
        "forwards-in-order",
        "a forward on another stream waits the forward before it",
        (
            _STEP + "_order_forward",
            "if last is not None and last[0] is not forward and not last[1].reached:",
            "if False:",
        ),
    ),
    edited(
        "step-waits",
        "A waits a step where an effect says so",
        (
            _APPLIER + "_add_step_wait",
            "if earlier and not self._ends[earlier[-1]].reached:",
            "if False:",
        ),
    ),
    edited(
        "step-waits-for-the-oldest",
        "that very step, and not an earlier one",
        (
            _APPLIER + "_add_step_wait",
            "assembly.add_wait(self._ends[earlier[-1]])",
            "assembly.add_wait(self._ends[earlier[0]])",
        ),
    ),
    edited(
        "waited-for-too-many",
        "a wait for a step is none for the steps behind it",
        (
            _APPLIER + "_note_waited",
            "for one in [one for one in self._ends if one <= step]:",
            "for one in list(self._ends):",
        ),
    ),
    edited(
        "waits-in-front",
        "a wait stands in front of the effects that it guards",
        (
            _ASSEMBLY + "add_wait",
            "self._add_between(WaitFor(event))",
            "self.pieces.append(WaitFor(event))",
        ),
    ),
    edited(
        "launch-queue",
        "effects behind an open launch wait until it is recorded",
        (_CURSOR + "take_in", "if self._steps.open:", "if False:"),
        (_CURSOR + "_apply", "if self._steps.open:", "if False:"),
    ),
    edited(
        "queue-loses-its-last",
        "everything that waited is applied",
        (
            _CURSOR + "_apply_held",
            "self._backlog.drop(len(held))",
            "self._backlog.drop(len(held) + (len(self._backlog) > len(held)))",
        ),
    ),
    edited(
        "queue-runs-ahead",
        "a follower applies what its leader had applied, and no more",
        (
            _CURSOR + "drain",
            "self._told_position if self._follows else self.known",
            "self.known",
        ),
    ),
    edited(
        "unaware-guard",
        "effects decided without knowledge of a step wait its whole end",
        (_CURSOR + "_guard_of", "unaware = self._unaware", "return None"),
    ),
    edited(
        "unaware-guard-of-the-oldest",
        "of several such steps the newest is waited for",
        (
            _CURSOR + "_guard_of",
            "StepGuard(place, next(reversed(unaware)))",
            "StepGuard(place, next(iter(unaware)))",
        ),
    ),
    edited(
        "guard-behind-what-it-guards",
        "from the first such entry on",
        (
            _APPLIER + "_assemble",
            "if guard is not None and place >= guard.entry_index:",
            "if guard is not None and place > guard.entry_index:",
        ),
    ),
)

COPY_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "backup-waits-f",
        "BK waits the tail of F",
        (
            _APPLIER + "_enqueue",
            "if self._forward_end is not None and not self._forward_end.reached:",
            "if self._forward_end is not None and piece.stream.value == 'load':",
        ),
    ),
    edited(
        "load-waits-a",
        "LD waits A's position",
        (
            _APPLIER + "_enqueue",
            "behind = [self._stream.record()]",
            "behind = [self._stream.record()][piece.stream.value == 'load' :]",
        ),
    ),
    edited(
        "backup-waits-a",
        "BK waits A's position",
        (
            _APPLIER + "_enqueue",
            "behind = [self._stream.record()]",
            "behind = [self._stream.record()][piece.stream.value != 'load' :]",
        ),
    ),
    edited(
        "copy-wait",
        "A waits a copy where an effect says so",
        (_COPIES + "end_of", "return self._ends.get(copy)", "return None"),
    ),
    edited(
        "copy-end-of-its-first-part",
        "a copy ends with its last part",
        (
            _COPIES + "start",
            "self._ends[work.copy] = stream.record()",
            "self._ends.setdefault(work.copy, stream.record())",
        ),
    ),
    edited(
        "copy-over-before-its-end",
        "a copy is reported as over when it is",
        (
            _COPIES + "take_ended",
            "[copy for copy, end in self._ends.items() if end.reached]",
            "list(self._ends)",
        ),
    ),
    edited(
        "copy-never-over",
        "and that it is over is reported",
        (
            _COPIES + "take_ended",
            "[copy for copy, end in self._ends.items() if end.reached]",
            "[]",
        ),
    ),
    edited(
        "copy-of-one-unit-less",
        "a copy copies every unit that it names",
        (
            _COPIES + "start",
            "units=work.units,",
            "units=work.units[: max(1, len(work.units) - 1)],",
        ),
        (
            _COPIES + "start",
            "host_units=work.host_units,",
            "host_units=work.host_units[: max(1, len(work.units) - 1)],",
        ),
    ),
)

MEMORY_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "zeroing",
        "what is to be zeroed is",
        (_ASSEMBLY + "_zero", "band = self._band(effect.band)", "return"),
    ),
    edited(
        "moving",
        "what is to be copied is",
        (_ASSEMBLY + "_move", "band = self._band(effect.band)", "return"),
    ),
    edited(
        "unmapping",
        "what is to read as the sink does",
        (
            _ASSEMBLY + "_write_map",
            "physical = _ZEROES[:count] if count <= len(_ZEROES) else np.zeros_like(virtual)",
            "return",
        ),
    ),
    edited(
        "sink-not-zeroed",
        "the sink is zeroed where an effect says so",
        (
            _ASSEMBLY + "add",
            "self._commands.zero_bytes(start_bytes=0, end_bytes=self._places.plan.sink_bytes)",
            "pass",
        ),
    ),
    edited(
        "row-lengths-kept",
        "a row that is reset names no pages",
        (
            _ASSEMBLY + "_reset_row",
            "lengths = self._places.plan.region.row_lengths",
            "return",
        ),
    ),
    edited(
        "slot-clears",
        "a launch clears the slots that were handed out",
        (_APPLIER + "enqueue_launch_work", "if work.empty:", "if True:"),
    ),
    edited(
        "slots-cleared-twice",
        "and once",
        (
            _APPLIER + "take_launch_work",
            "self._launch_work = NO_LAUNCH_WORK",
            "pass",
        ),
    ),
    edited(
        "clears-follow-moves",
        "what is to be cleared follows a slot that moves",
        (
            _ASSEMBLY + "_let_clears_follow",
            "slots = _joined(self._clear_slots)",
            "return",
        ),
    ),
    edited(
        "clears-yield",
        "a launch leaves alone what was written since it was asked to clear it",
        (_ASSEMBLY + "_forget_clears", "slots = _joined(self._clear_slots)", "return"),
    ),
    edited(
        "tables-not-cleared",
        "tables start out as zero",
        (
            _APPLIER + "clear",
            "for start_bytes, table_bytes in _table_extents(self._plan):",
            "for start_bytes, table_bytes in _table_extents(self._plan)[:1]:",
        ),
    ),
    edited(
        "progress-per-entry",
        "the progress word is written behind every segment that moves",
        (_ASSEMBLY + "add_entry", "if self._has_moved:", "if False:"),
    ),
    edited(
        "progress-ahead",
        "what it says is done",
        (
            _ASSEMBLY + "add_entry",
            "self._progress = (position, index)",
            "self._progress = (position + 1, index)",
        ),
    ),
    edited(
        "no-redo",
        "the next applier redoes what is not confirmed",
        (
            "kvd_client.device.redo:redo",
            "outcomes = [redoable(entry.outcome) for entry in entries[start - first_position :]]",
            "outcomes = [type(entry.outcome)(entry.outcome.result) "
            "for entry in entries[start - first_position :]]",
        ),
    ),
    edited(
        "redo-a-segment-late",
        "from the first segment on that is not confirmed",
        (
            "kvd_client.device.redo:redo",
            "start, segment_start_index = int(progress.position), progress.segment_index + 1",
            "start, segment_start_index = int(progress.position), progress.segment_index + 2",
        ),
    ),
    edited(
        "redo-of-confirmed-segments",
        "and from none before it",
        (
            "kvd_client.device.redo:redo",
            "start, segment_start_index = int(progress.position), progress.segment_index + 1",
            "start, segment_start_index = int(progress.position), 0",
        ),
    ),
)

BENCH_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "load-waits-f",
        "LD waits the tail of F",
        (
            _APPLIER + "_enqueue",
            "if self._forward_end is not None and not self._forward_end.reached:",
            "if self._forward_end is not None and piece.stream.value != 'load':",
        ),
    ),
)
"""Faults that only the benches of tests/mutation notice; see `kvd.testing.mutants.equivalents`."""
