"""An engine that decides operations, and modelled streams that carry out their effects.

As in `tests.mutation.bench` nothing is ordered but by what was decided: waits are effects, copies
run behind all forwards and effects enqueued before them, and peers act once the host has seen A
reach the entry that told them where.
"""

from collections.abc import Sequence

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.signals import Signal, copy_signal, step_signal
from kvd.testing.modelled.choice import InOrder
from kvd.testing.modelled.device import ModelledDevice, ModelledEvent, ModelledStream, ModelledWork
from kvd.testing.modelled.shadow import Accesses, Extent
from kvd.testing.modelled.transfers import Network, Transfer
from kvd.testing.modelled.world import World
from kvd_proto.operations import Launch, Operation, Processed, WriteSet
from kvd_proto.outcomes import (
    AnyEffect,
    ClearSlots,
    Copy,
    CopyStream,
    Move,
    Outcome,
    Resolved,
    Wait,
    Zero,
    ZeroSink,
)
from tests.stateful.ranks import columns_of, int64s, stage
from tests.stateful.values import STATE, engine_with_value

Named = tuple[int, Sequence[int]]
"""A band and ids in it."""


class OperationsBench:
    """One rank of a stage that holds value 1 and request 2; see `engine_with_value`."""

    def __init__(self, *, spare_bytes: int = 1 << 16) -> None:
        """Start idle; with fewer ``spare_bytes`` pages have to move."""
        plan = stage(spare_bytes=spare_bytes).storage
        self.plan = plan
        self.engine = engine_with_value(spare_bytes=spare_bytes)
        self.order = self.engine.chain.order
        self.bands = self.engine.chain.bands
        self.world = World(InOrder())
        device = ModelledDevice(self.world, plan=plan, declares_only=True)
        self._device = device
        self._memory = device.allocate(plan.total_bytes)
        self._allocator, self._forward = device.stream("allocator"), device.stream("forward")
        self._copy_streams = {kind: device.stream(kind.value) for kind in CopyStream}
        self._network = Network(self.world)
        self._ends: dict[Signal, ModelledEvent] = {}
        self._slots_due: list[Units] = []
        self.waited: list[Signal] = []
        """What effects had A wait for, in order."""
        self.copies_follow_forwards = True
        """Copies wait the tail of F at submission."""
        self.peers_follow = True
        """Peers are told a place once A reached the entry that says so."""

    def decide(self, *operations: Operation) -> Outcome:
        """Decide operations and enqueue their effects; returns the last outcome."""
        outcome = Outcome(None)  # type: ignore[arg-type]
        for operation in operations:
            outcome = self.engine.decide(0, operation)
            self._perform(outcome)
        return outcome

    def launch(
        self,
        *touched: Named,
        reads: Sequence[Named] = (),
        writes: Sequence[int] | None = (),
        reads_sink: bool = False,
    ) -> None:
        """Launch a step that reads and writes what it touches, and reads more.

        ``writes`` names the requests that its write set states, None leaves it unknown.
        """
        step = self.engine.chain.steps.launched_count + 1
        self._forward.wait(self._allocator.record())
        for slots in self._slots_due:
            self._touch(self._forward, f"clear slots of step {step}", writes=[(STATE, slots)])
        self._slots_due.clear()
        kind = WriteSet.UNKNOWN if writes is None else WriteSet.REQUESTS
        self.decide(Launch(step, 0, kind, b"" if writes is None else int64s(writes)))
        self._enqueue_forward(step, touched, reads, reads_sink=reads_sink)
        self._note_end(step)

    def process(self) -> None:
        """Process the oldest step in flight."""
        step = self.engine.chain.steps.processed_count + 1
        self._end_of(step).synchronize(0)
        self.decide(Processed(step))

    def tell_peer(self, outcome: Outcome, *, writes: bool) -> list[Transfer]:
        """Let a peer read or write the places that an outcome resolved; returns its transfers."""
        resolved = outcome.result
        assert isinstance(resolved, Resolved)
        self._flush()
        if self.peers_follow:
            self._allocator.record().synchronize(0)
        columns = columns_of(outcome)
        transfers: list[Transfer] = []
        for band, column in enumerate(resolved.physical):
            if column < 0 or not columns[column]:
                continue
            unit_bytes = self.plan.bands[band].unit_bytes
            starts = np.array(columns[column]) * unit_bytes
            if writes:
                content = np.full((starts.size, unit_bytes), 7, dtype=np.uint8)
                transfers.append(self._network.receive(self._memory, starts, content))
            else:
                transfers.append(self._network.send(self._memory, starts, unit_bytes))
        return transfers

    def run(self) -> None:
        """Run all that was enqueued; raises RaceError."""
        self.world.run()

    # ---- inside -----------------------------------------------------------------------------

    def _enqueue_forward(
        self, step: int, touched: Sequence[Named], reads: Sequence[Named], *, reads_sink: bool
    ) -> None:
        def places(named: Sequence[Named]) -> list[tuple[int, Units]]:
            units = [
                self.bands[band].physical(np.array(ids, dtype=np.int64)) for band, ids in named
            ]
            # What slid out of a window has no unit there, and nobody looks for it.
            return [(band, there[there > 0]) for (band, _), there in zip(named, units, strict=True)]

        self._touch(
            self._forward,
            f"step {step}",
            reads=places([*touched, *reads]),
            writes=places(touched),
            reads_sink=reads_sink,
        )

    def _note_end(self, step: int) -> None:
        self._ends[step_signal(step)] = self._forward.record()

    def _end_of(self, step: int) -> ModelledEvent:
        return self._ends[step_signal(step)]

    def _flush(self) -> None:
        """Enqueue what was decided and is not enqueued yet; here nothing ever is."""

    def _perform(self, outcome: Outcome) -> None:
        columns = [np.array(column, dtype=np.int64) for column in columns_of(outcome)]
        copying: dict[int, ModelledStream] = {}
        for segment in outcome.segments:
            for effect in segment:
                self._perform_one(effect, columns, copying)
        for copy, stream in copying.items():
            self._ends[copy_signal(copy)] = stream.record()

    def _perform_one(
        self, effect: AnyEffect, columns: list[Units], copying: dict[int, ModelledStream]
    ) -> None:
        match effect:
            case Wait():
                signal = step_signal(effect.step) if effect.step else copy_signal(effect.copy)
                self.waited.append(signal)
                self._allocator.wait(self._ends[signal])
            case Zero():
                places = [(effect.band, columns[effect.units])]
                self._touch(self._allocator, "zero", writes=places)
            case Move():
                self._touch(
                    self._allocator,
                    "move",
                    reads=[(effect.band, columns[effect.sources])],
                    writes=[(effect.band, columns[effect.destinations])],
                )
            case Copy():
                stream = self._copy_streams[effect.stream]
                if effect.copy not in copying:
                    copying[effect.copy] = stream
                    if self.copies_follow_forwards:
                        stream.wait(self._forward.record())
                    stream.wait(self._allocator.record())
                places = [(effect.band, columns[effect.units])]
                loads = effect.stream is CopyStream.LOAD
                self._touch(
                    stream,
                    f"copy {effect.copy}",
                    reads=[] if loads else places,
                    writes=places if loads else [],
                )
            case ClearSlots():
                self._slots_due.append(columns[effect.units])
            case ZeroSink():
                self._touch(self._allocator, "zero sink", writes_sink=True)
            case _:
                """Tables are not watched here."""

    def _touch(
        self,
        stream: ModelledStream,
        label: str,
        *,
        reads: Sequence[tuple[int, Units]] = (),
        writes: Sequence[tuple[int, Units]] = (),
        reads_sink: bool = False,
        writes_sink: bool = False,
    ) -> None:
        sink = self._memory.extent([0], self.plan.sink_bytes)
        read = [*self._extents(reads), *([sink] if reads_sink else [])]
        written = [*self._extents(writes), *([sink] if writes_sink else [])]
        accesses = Accesses(reads=read, writes=written)
        stream.submit(ModelledWork(label, lambda: accesses))

    def _extents(self, places: Sequence[tuple[int, Units]]) -> list[Extent]:
        sizes = [band.unit_bytes for band in self.plan.bands]
        return [
            self._memory.extent(units * sizes[band], sizes[band])
            for band, units in places
            if units.size
        ]
