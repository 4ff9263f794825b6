"""The world of modelled devices: every stream of every rank, and what may run next.

Nothing runs when it is enqueued. Actions run when the world is told to go on, or while the host
waits for an event; a chooser picks one of those whose predecessors ran. Predecessors are the
earlier actions of the same stream and whatever that stream was told to wait for, so everything that
is played is a possible history of real devices. One thread drives all of it.

Invariants:
- of two accesses to the same bytes, one of them a write, one is known to be over when the other
  begins; it is checked as actions run
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from kvd.errors import RaceError
from kvd.testing.modelled.choice import Chooser, Seeded
from kvd.testing.modelled.clock import (
    HOST,
    Clock,
    StreamIndex,
    check_stream_index,
    joined,
    new_clock,
)
from kvd.testing.modelled.queue import Action, ActionName, Event, Queue, Run, Wait
from kvd.testing.modelled.shadow import Accesses, Conflict, Grain, Shadow
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode

T = TypeVar("T")

PLAYED_KEPT_MAX: Final = 10_000
"""Actions that a world remembers to have run, for whoever wants to know how it came to that."""


class World:
    """All streams that are played together."""

    def __init__(self, chooser: Chooser | int, *, only_needed: bool = False) -> None:
        """Begin without streams; an integer is the seed of a chooser.

        With ``only_needed`` a host that waits has nothing run but what it waits for, so that all
        else is as late as it can be.
        """
        self._chooser = Seeded(chooser) if isinstance(chooser, int) else chooser
        self._only_needed = only_needed
        self._host = Queue("host", HOST)
        self._host_clock = new_clock()
        self._queues = [self._host]
        self._passing: list[Queue] = []
        self._enqueued_count = 0
        self._ran_count = 0
        self._shadows: WeakValueDictionary[tuple[int, int], Shadow] = WeakValueDictionary()
        self.played: deque[ActionName] = deque(maxlen=PLAYED_KEPT_MAX)
        """The actions that ran last, oldest first."""
        self.note = ""
        """What the host is doing, for the names of the actions it enqueues meanwhile."""

    @property
    def ran_count(self) -> int:
        """Return how many actions ran."""
        return self._ran_count

    @property
    def idle(self) -> bool:
        """Return whether nothing waits in any stream."""
        self._settle()
        return not any(queue.items or queue.busy for queue in self._queues)

    # ---- streams ----------------------------------------------------------------------------

    def new_queue(self, name: str) -> Queue:
        """Return a queue of its own, for a stream."""
        queue = Queue(name, check_stream_index(len(self._queues)))
        self._queues.append(queue)
        return queue

    def passing_queue(self, name: str) -> Queue:
        """Return a queue for something that has no order with anything, such as a transfer.

        A queue whose work the host knows to be over is used again: what is enqueued later is
        ordered behind that work in any case.
        """
        for queue in self._passing:
            if not queue.items and self._host_clock[queue.index] >= queue.count:
                queue.name = name
                return queue
        queue = self.new_queue(name)
        self._passing.append(queue)
        return queue

    def enqueue(
        self,
        queue: Queue,
        label: str,
        run: Run,
        *,
        after: Callable[[], None] | None = None,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        """Enqueue an action."""
        name = queue.next_name(label, self.note, self._host_clock)
        self._enqueued_count += 1
        queue.items.append(
            Action(
                name=name,
                stream_index=queue.index,
                enqueued_index=self._enqueued_count,
                clock=queue.tail,
                run=run,
                after=after,
                ready=ready,
            )
        )

    def kill(self, queues: Sequence[Queue], cause: DeviceError) -> None:
        """Let a process die: what its streams did not run is gone, what they ran is over.

        Whoever comes after it waits until it is quiet; here that is at once. Events that were not
        reached fire as failed, and later calls raise from ``cause``.
        """
        for queue in queues:
            queue.failure = queue.failure or cause
            # Not the queue's tail: that knows of waits which never came to their end.
            self._host_clock = joined(self._host_clock, queue.reached)
            self._host_clock[queue.index] = queue.count
        self._settle()

    # ---- playing ----------------------------------------------------------------------------

    def step(self) -> bool:
        """Run one action; False if none may run. Raises RaceError."""
        self._settle()
        return self._run_one(self._queues)

    def advance(self, count: int) -> int:
        """Run up to ``count`` actions; return how many there were."""
        for done in range(count):
            if not self.step():
                return done
        return count

    def run(self, chooser: Chooser | int | None = None) -> None:
        """Run everything, for this call with another chooser or seed if one is given.

        Raises DeviceError with code TIMED_OUT if something is left that nothing can release, and
        RaceError.
        """
        before = self._chooser
        if chooser is not None:
            self._chooser = Seeded(chooser) if isinstance(chooser, int) else chooser
        try:
            while self.step():
                pass
        finally:
            self._chooser = before
        if not self.idle:
            raise self._deadlock("the world does not come to its end", self._queues)

    def run_until(self, event: Event) -> None:
        """Run until an event fires, and let the host know what is over by then.

        Raises DeviceError with code TIMED_OUT and what everything waits for if that cannot be, and
        RaceError.
        """
        while True:
            self._settle()
            if event.fired:
                break
            queues = self._needed(event) if self._only_needed else self._queues
            if not self._run_one(queues) and not self._run_one(self._queues):
                raise self._deadlock(
                    f"the host waits for an event of stream {event.queue.name!r}", self._queues
                )
        self.host_knows(event)

    # ---- the host ---------------------------------------------------------------------------

    def host_knows(self, event: Event) -> None:
        """Let the host know that an event was reached: what it does later comes behind that."""
        self._host_clock = joined(self._host_clock, event.clock)

    def host_access(self, label: str, access: Callable[[], T], accesses: Accesses) -> T:
        """Read or write memory from the host, checked like any action; it happens at once.

        Raises RaceError if the host does not know everything to be over that it has to.
        """
        name = self._host.next_name(label, self.note, self._host_clock)
        self._host_clock = self._host.tail
        self._check(name, HOST, self._host_clock, accesses)
        return access()

    # ---- memory -----------------------------------------------------------------------------

    def shadow(self, identity: tuple[int, int], size_bytes: int, grains: Sequence[Grain]) -> Shadow:
        """Return who touched which bytes of a memory, which all its mappings share."""
        shadow = self._shadows.get(identity)
        if shadow is None:
            shadow = self._shadows[identity] = Shadow(size_bytes, grains)
        return shadow

    # ---- inside -----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Pass every event and wait that can be passed: one event may release several queues."""
        waiting = [queue for queue in self._queues if queue.items]
        passed = True
        while passed:
            passed = False
            for queue in waiting:
                before = len(queue.items)
                queue.settle()
                passed = passed or len(queue.items) != before

    def _run_one(self, queues: Sequence[Queue]) -> bool:
        heads = [(queue, head) for queue in queues if (head := queue.head) is not None]
        if not heads:
            return False
        chosen = self._chooser.choose([head for _, head in heads]) if len(heads) > 1 else 0
        queue, action = heads[chosen]
        queue.items.popleft()
        queue.busy = True
        queue.last_run = action.name.sentence
        try:
            self._execute(queue, action)
        finally:
            queue.busy = False
        return True

    def _execute(self, queue: Queue, action: Action) -> None:
        self._ran_count += 1
        self.played.append(action.name)
        queue.reached = action.clock
        try:
            accesses = action.run()
            self._check(action.name, queue.index, action.clock, accesses)
        except (RaceError, KeyboardInterrupt):
            raise
        except BaseException as error:  # rim: the stream keeps it, and its next call raises it
            queue.failure = error
            return
        if action.after is not None:
            action.after()

    def _check(
        self, name: ActionName, stream: StreamIndex, clock: Clock, accesses: Accesses
    ) -> None:
        number = name.number
        for extent in accesses.reads:
            conflict = extent.shadow.note_reads(extent, stream, number, clock)
            if conflict is not None:
                raise self._race(name, "reads", conflict)
        for extent in accesses.writes:
            conflict = extent.shadow.note_writes(extent, stream, number, clock)
            if conflict is not None:
                raise self._race(name, "writes", conflict)

    def _race(self, name: ActionName, does: str, conflict: Conflict) -> RaceError:
        other = self._queues[conflict.stream_index].name_of(conflict.number)
        did = "wrote" if conflict.wrote else "read"
        return RaceError(
            f"{name.sentence} {does}, and {other.sentence} {did} {conflict.where}: "
            "nothing orders one behind the other"
        )

    def _needed(self, event: Event) -> list[Queue]:
        """Return the queues whose next action has to run before an event can fire."""
        found: list[Queue] = []
        todo = [event.queue]
        while todo:
            queue = todo.pop()
            if queue in found:
                continue
            found.append(queue)
            if queue.items and isinstance(wait := queue.items[0], Wait):
                todo.append(wait.event.queue)
        return found

    def _deadlock(self, what: str, queues: Sequence[Queue]) -> DeviceError:
        waiting = [queue.complaint for queue in queues if queue.items or queue.busy]
        return DeviceError(
            f"deadlock: {what}, and nothing can run: " + "; ".join(waiting or ["nothing waits"]),
            code=ErrorCode.TIMED_OUT,
        )
