"""The bench of operations with a rank's own applier: what it enqueues is all the order there is.

Outcomes are applied one by one, or as one reply each time that something else has to be enqueued,
as a batch's are. Forwards are launched as a rank launches them.
"""

from collections.abc import Sequence

from kvd_client.device.apply import Applier
from kvd_proto.operations import Launch, Released, WriteSet
from kvd_proto.outcomes import Outcome
from tests.mutation.operations_bench import Named, OperationsBench
from tests.stateful.ranks import int64s

POOL_PLACES = 64


class ApplierBench(OperationsBench):
    """The same operations, carried out by an applier."""

    def __init__(self, *, as_replies: bool, spare_bytes: int = 1 << 16) -> None:
        super().__init__(spare_bytes=spare_bytes)
        self._as_replies = as_replies
        self._outcomes: list[Outcome] = []
        self._applier = Applier(
            device=self._device,
            memory=self._memory,
            plan=self.plan,
            stream=self._allocator,
            overlaps=True,
        )
        self._applier.clear()
        for band in self.plan.bands:
            self._applier.copies.add_pool(band.name, POOL_PLACES)

    def launch(
        self,
        *touched: Named,
        reads: Sequence[Named] = (),
        writes: Sequence[int] | None = (),
        reads_sink: bool = False,
    ) -> None:
        """Launch a step; its notice comes with what is decided next."""
        self._flush()
        step = self.engine.chain.steps.launched_count + 1
        effects = self._applier.position_event
        assert effects is not None
        self._forward.wait(effects)
        self._applier.enqueue_launch_work(self._forward)
        reads_end = self._forward.record()
        self._enqueue_forward(step, touched, reads, reads_sink=reads_sink)
        self._note_end(step)
        self._applier.note_step(step, self._end_of(step), barrier=reads_end)
        kind = WriteSet.UNKNOWN if writes is None else WriteSet.REQUESTS
        self.decide(Launch(step, 0, kind, b"" if writes is None else int64s(writes)))

    def take_ended_copies(self) -> list[int]:
        """Return the copies that are over and were not returned before."""
        return self._applier.copies.take_ended()

    def release(self, entry: Released) -> None:
        """Log that copies and transfers are over on every rank, of which there is one."""
        self._perform(self.engine.release(entry))

    def run(self) -> None:
        """Apply what is decided, and run everything; raises RaceError."""
        self._flush()
        super().run()

    def _perform(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        if not self._as_replies:
            self._flush()

    def _flush(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        if outcomes:
            self._applier.apply_reply(self._applier.applied + 1, outcomes)
