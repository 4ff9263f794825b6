"""A launch: the bracket around one forward, ordered with the allocator's work by streams."""

from collections.abc import Callable
from types import TracebackType

from kvd_client.device.port import Stream
from kvd_client.errors import StepOrderError
from kvd_client.session import Session
from kvd_proto.operations import StepAborted


class Step:
    """One forward between its launch and the end of what it enqueues.

    The forward stream runs behind the effects up to ``position``, and no effect of a later position
    is enqueued before the step's end is recorded.
    """

    def __init__(
        self, session: Session, *, number: int, allocator: Stream, forward: Stream
    ) -> None:
        self._session = session
        self._allocator = allocator
        self._forward = forward
        self._reads_done = False
        self._open = False
        self.number = number
        self.position = session.applied

    @property
    def stream(self) -> Stream:
        """Return the stream that this forward runs on."""
        return self._forward

    def submit(self, work: Callable[[], None]) -> None:
        """Run host-side work in the forward stream's order; raises StepOrderError after the end."""
        self._check_open("submit")
        self._forward.submit(work)

    def reads_done(self) -> None:
        """Declare that tables and rows are read: what follows uses ids that were resolved before.

        Raises StepOrderError if it was declared already. Without overlap the allocator's stream
        waits for the whole forward in any case, so nothing is gained yet by declaring it.
        """
        self._check_open("reads_done")
        if self._reads_done:
            raise StepOrderError(f"reads_done was declared already for step {self.number}")
        self._reads_done = True

    def begin(self) -> None:
        """Order the forward behind the effects, clear what it needs cleared, and count it."""
        session = self._session
        with _Enqueuing(session, f"step {self.number} cannot be launched"):
            if self._forward is not self._allocator:
                self._forward.wait(self._allocator.record())
            session.applier.enqueue_launch_work(self._forward)
        session.steps.begin(self.number, self.position)
        self._open = True

    def end(self) -> None:
        """Record the step where it stands; later effects run behind it."""
        session = self._session
        self._open = False
        session.steps.open = False
        with _Enqueuing(session, f"the end of step {self.number} cannot be recorded"):
            end = self._forward.record()
            if self._forward is not self._allocator:
                self._allocator.wait(end)
            session.applier.note_step(self.number, end)
            session.steps.note_end(end)

    def aborted(self) -> StepAborted:
        """Return the fact that this step was left by an exception."""
        return StepAborted(self.number)

    def _check_open(self, what: str) -> None:
        if not self._open:
            raise StepOrderError(f"{what}: step {self.number} is not being launched")


class _Enqueuing:
    """Guards the order of streams: if it cannot be established, this rank cannot go on."""

    def __init__(self, session: Session, what: str) -> None:
        self._session = session
        self._what = what

    def __enter__(self) -> None:
        self._session.check_usable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._session.poison(f"{self._what}: {kind.__name__}: {error}")
