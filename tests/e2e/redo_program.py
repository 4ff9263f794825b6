"""Kill an applier after every k-th device action: ``python -m tests.e2e.redo_program SEED``.

The books of a stage are driven until a batch rearranges the arena in several segments. For every k
one process applies that batch's effects to a copy of the arena and kills itself after k actions, a
second one attaches as a rank of the next incarnation does, and what it leaves is compared with the
books and with an unbroken run. Each of these options takes one rule away, and has to go wrong:

    --one-segment         the segments of every entry are joined
    --progress-per-entry  the progress word is written behind an entry, not behind segments of it
    --no-redo             the next incarnation's applier redoes nothing

Prints one line of JSON. This process has no threads, so that it may fork.
"""

import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from kvd.alloc.checks import CheckLevel
from kvd.engine.incarnation import Incarnation
from kvd.engine.legacy import Legacy
from kvd.engine.log import LogRecord
from kvd.engine.stage import StageEngine
from kvd.testing.child import die_with_parent
from kvd_client import Mode
from kvd_client.device.apply import Applier, read_progress
from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import (
    ALLOCATOR_LANE,
    FORWARD_LANE,
    FencePage,
    create_fence_page,
)
from kvd_client.device.host.commands import HostCommands
from kvd_client.device.host.device import HostDevice
from kvd_client.device.host.memory import HostMemory
from kvd_client.device.port import Commands, Event, Memory
from kvd_client.device.redo import redoable
from kvd_client.rank import Rank, RankMemory
from kvd_proto.codec import decode_entry, encode
from kvd_proto.control import Welcome
from kvd_proto.operations import Admit, Advance, Free, Operation, Take
from kvd_proto.outcomes import Move, Outcome
from kvd_proto.version import PROTOCOL_VERSION
from tests.stateful.ranks import CHUNK_TOKENS, CONTEXT_TOKENS, int32s, int64s, lone, stage

if TYPE_CHECKING:
    from kvd_client.transport import Transport

DEADLINE_MS: Final = 10_000
BATCHES_COUNT: Final = 300
SEGMENTS_MIN: Final = 3
ROWS: Final = 8
STAGE = stage(rows=ROWS, spare_bytes=1 << 14)
PLAN = STAGE.storage
Bytes = NDArray[np.uint8]


class InlineStream:
    """A stream that runs its work where it is enqueued, without a thread."""

    name = "inline"

    def enqueue(self, commands: Commands) -> None:
        assert isinstance(commands, HostCommands)
        commands.run()

    def submit(self, work: Callable[[], None]) -> None:
        work()

    def record(self) -> Event:
        raise NotImplementedError

    def wait(self, event: Event) -> None:
        raise NotImplementedError

    def synchronize(self, timeout_ms: int) -> None:
        """Everything ran already."""

    def close(self, timeout_ms: int) -> None:
        """Everything ran already."""


class MortalCommands(HostCommands):
    """Commands that are carried out unit by unit, until the process has done enough."""

    left_count = 0
    last_segments: ClassVar[dict[int, int]] = {}
    """Of each position, if not empty: the segment behind which alone progress is written."""

    def write_words(self, *, offset_bytes: int, values: tuple[int, int]) -> None:
        if MortalCommands.last_segments.get(values[0], values[1]) == values[1]:
            super().write_words(offset_bytes=offset_bytes, values=values)

    def run(self) -> None:
        for function, arguments in self._steps:
            for piece in _pieces(arguments):
                if MortalCommands.left_count == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                MortalCommands.left_count -= 1
                function(*piece)


def _pieces(arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Cut an action on many units or entries into one action for each."""
    targets = [one for one in arguments if _is_list(one)]
    if not targets:
        return [arguments]
    return [
        tuple(one[i : i + 1] if _is_list(one) else one for one in arguments)
        for i in range(len(targets[0]))
    ]


def _is_list(argument: Any) -> bool:
    """Return whether an argument lists units or entries, which are 64 bits wide."""
    return bool(getattr(argument, "dtype", None) == np.int64 and argument.ndim == 1)


class MortalDevice(HostDevice):
    """A host device whose process dies in the middle of its work."""

    def commands(self, memory: Memory) -> HostCommands:
        assert isinstance(memory, HostMemory)
        return MortalCommands(memory)


class Case(NamedTuple):
    """A moment before a batch that rearranges, and what the next incarnation takes over."""

    before: bytes
    first_position: int
    outcomes: list[Outcome]
    unbroken: bytes
    legacy: Legacy
    engine: StageEngine
    rewrite: Outcome


def find_case(seed: int, *, joined: bool) -> Case:
    """Drive the books until a batch rearranges in several segments."""
    rank, random = lone(STAGE), Random(seed)
    chain = rank.world.engine.chain
    device = HostDevice()
    memory = device.map(create_memory("arena", PLAN.total_bytes), PLAN.total_bytes)
    applier = Applier(device=device, memory=memory, plan=PLAN, stream=InlineStream())
    applier.clear()
    for number in range(1, BATCHES_COUNT + 1):
        known, before = len(rank.entries), memory.bytes.tobytes()
        rank.send(*_some_operations(random, rank.world.engine, number))
        outcomes = [redoable(entry.outcome) for entry in rank.entries[known:]]
        applier.apply_reply(known + 1, outcomes)
        if any(_rearranges(outcome) for outcome in outcomes):
            break
        for index, band in enumerate(chain.bands):
            for name, unit in _bound(rank.world.engine, index).items():
                start = unit * band.geometry.unit_bytes
                memory.bytes[start : start + band.geometry.unit_bytes] = _mark(index, name)
    else:
        raise AssertionError(f"seed {seed} rearranges nothing in {BATCHES_COUNT} batches")
    rank.world.end("killed")
    records = rank.world.log.records(rank.world.log.first_position, rank.world.log.end_position)
    if joined:
        outcomes = [_joined(outcome) for outcome in outcomes]
        records = [_joined_record(record) for record in records]
    legacy = Legacy(rank.world.log.end_position, rank.world.engine, tuple(records))
    following = Incarnation(
        STAGE,
        number=2,
        ranks=(0,),
        level=CheckLevel.STRICT,
        ring_entries_max=0,
        lag_entries_max=1,
        legacy=legacy,
    )
    first = following.log.records(legacy.end_position + 1, following.log.end_position)
    assert len(first) == 1
    return Case(
        before,
        known + 1,
        outcomes,
        memory.bytes.tobytes(),
        legacy,
        rank.world.engine,
        decode_entry(first[0].entry).outcome,
    )


def _some_operations(random: Random, engine: StageEngine, newest: int) -> list[Operation]:
    """Return what a scheduler might ask that oversubscribes the arena and retracts."""
    names, rows = engine.requests.names, engine.requests.rows
    live = sorted(names.row_of)
    if len(live) < ROWS - 1 and random.random() < 0.6:
        prompt, new = random.randint(1, 40), random.randint(0, 40)
        take = int32s([min(prompt, CHUNK_TOKENS)])
        ids = int64s([newest])
        return [Admit(ids, int32s([prompt]), int32s([new]), take, reserve_batches=1)]
    named = sorted(random.sample(live, min(len(live), random.randint(1, 3))))
    growing = [one for one in named if rows.tokens[names.row_of[one]] < CONTEXT_TOKENS - 10]
    if not growing or random.random() < 0.15:
        return [Free(int64s(named))] if named else []
    advances: list[Operation] = []
    for one in growing:
        row = names.row_of[one]
        behind = int(rows.tokens[row] - rows.computed_tokens[row])
        if behind and random.random() < 0.5:
            advances.append(Advance(int64s([one]), behind))
    victims = random.sample(live, min(2, len(live)))
    return [*advances, Take(int64s(growing), random.randint(1, 6), victims=int64s(victims))]


def _rearranges(outcome: Outcome) -> bool:
    effects = [effect for segment in outcome.segments for effect in segment]
    moves = sum(isinstance(effect, Move) for effect in effects)
    return moves > 1 and len(outcome.segments) >= SEGMENTS_MIN


def _joined(outcome: Outcome) -> Outcome:
    whole = tuple(effect for segment in outcome.segments for effect in segment)
    return structs.replace(outcome, segments=(whole,) if whole else ())


def _joined_record(record: LogRecord) -> LogRecord:
    entry = decode_entry(record.entry)
    joined = structs.replace(entry, outcome=_joined(entry.outcome))
    return structs.replace(record, entry=encode(joined))


def _bound(engine: StageEngine, index: int) -> dict[int, int]:
    band = engine.chain.bands[index]
    ids = band.bound_ids()
    return dict(zip(ids.tolist(), band.physical(ids).tolist(), strict=True))


def _mark(index: int, name: int) -> Bytes:
    unit_bytes = PLAN.bands[index].unit_bytes
    mark = np.frombuffer(struct.pack("<HBB", name, index, 0x5A), dtype=np.uint8)
    return np.tile(mark, unit_bytes // len(mark))


def forked(work: Callable[[], None]) -> int:
    """Run something in a fork; returns its exit code, or minus the signal that killed it."""
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            die_with_parent(own)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def apply_and_die(case: Case, descriptor: int, action_count: int) -> None:
    """Apply the batch as its rank did, and die after so many actions."""
    device = MortalDevice()
    memory = device.map(descriptor, PLAN.total_bytes)
    stream = device.stream("allocator")
    applier = Applier(
        device=device, memory=memory, plan=PLAN, stream=stream, applied=case.first_position - 1
    )
    MortalCommands.left_count = action_count
    if "--progress-per-entry" in sys.argv:
        MortalCommands.last_segments = {
            position: len(outcome.segments) - 1
            for position, outcome in enumerate(case.outcomes, case.first_position)
        }
    applier.apply_reply(case.first_position, case.outcomes)
    stream.synchronize(DEADLINE_MS)


def attach_after(case: Case, descriptor: int) -> None:
    """Do what a rank of the next incarnation does: redo, clear the tables, rewrite them."""
    device = HostDevice()
    memory = device.map(descriptor, PLAN.total_bytes)
    fences = FencePage(create_fence_page("fence"))
    stream = device.stream("allocator", fences.lane(ALLOCATOR_LANE))
    welcome = Welcome(
        version=PROTOCOL_VERSION,
        build="",
        epoch=1,
        token=1,
        incarnation=2,
        heartbeat_ms=1000,
        frame_bytes_max=1 << 20,
        next_index=0,
        position=case.legacy.end_position,
        asked_bytes=0,
        granted_bytes=0,
        minimum_rank=0,
        plan=PLAN,
        redo=b""
        if "--no-redo" in sys.argv
        else case.legacy.redo(read_progress(memory, PLAN).position),
    )
    rank = Rank(
        welcome=welcome,
        program=0,
        mode=Mode.MIRRORED,
        transport=cast("Transport", None),
        mapped=RankMemory(
            device,
            memory,
            fences,
            stream,
            device.stream("forward", fences.lane(FORWARD_LANE)),
            own_forward=True,
            overlaps=True,
        ),
        deadline_ms=DEADLINE_MS,
    )
    rank.session.applier.apply(case.legacy.end_position + 1, case.rewrite)
    stream.synchronize(DEADLINE_MS)


def problems_of(case: Case, found: bytes) -> list[str]:
    """Return what the next incarnation would find wrong: units, map entries."""
    problems: list[str] = []
    for index, plan in enumerate(PLAN.bands):
        bound = _bound(case.engine, index)
        for name, unit in bound.items():
            place = slice(unit * plan.unit_bytes, (unit + 1) * plan.unit_bytes)
            if found[place] != case.unbroken[place]:
                problems.append(f"{plan.name} {name} in unit {unit}")
        table = PLAN.region.band_maps[index]
        start = table.offset_bytes
        entries = np.frombuffer(found[start : start + 4 * table.entry_count], dtype=np.int32)
        if {name: int(entries[name]) for name in entries.nonzero()[0].tolist()} != bound:
            problems.append(f"map of {plan.name}")
    return problems


def own_units(case: Case, found: bytes) -> int:
    """Return how many bound units hold what their owner wrote before the batch."""
    count = 0
    for index, plan in enumerate(PLAN.bands):
        for name, unit in _bound(case.engine, index).items():
            place = slice(unit * plan.unit_bytes, (unit + 1) * plan.unit_bytes)
            count += found[place] == _mark(index, name).tobytes()
    return count


def kill_after(case: Case, action_count: int) -> tuple[bool, list[str]]:
    """Let an applier die after so many actions; returns whether it did, and what is wrong then."""
    descriptor = create_memory("arena", PLAN.total_bytes)
    os.pwrite(descriptor, case.before, 0)
    code = forked(lambda: apply_and_die(case, descriptor, action_count))
    assert code in (0, -signal.SIGKILL), f"the applier ended with {code}"
    redone = forked(lambda: attach_after(case, descriptor))
    assert redone == 0, f"the next applier ended with {redone}"
    found = os.pread(descriptor, PLAN.total_bytes, 0)
    os.close(descriptor)
    return code != 0, problems_of(case, found)


def main() -> None:
    """Kill after every action, from none to all of them."""
    die_with_parent(int(sys.argv[1]))
    case = find_case(int(sys.argv[2]), joined="--one-segment" in sys.argv)
    wrong: dict[int, list[str]] = {}
    killed_count, killed = 0, True
    while killed:
        killed, problems = kill_after(case, killed_count)
        if problems:
            wrong[killed_count] = problems
        killed_count += killed
    print(
        json.dumps(
            {
                "actions": killed_count,
                "segments": max(len(one.segments) for one in case.outcomes),
                "own_units": own_units(case, case.unbroken),
                "wrong": wrong,
            }
        )
    )


if __name__ == "__main__":
    main()
