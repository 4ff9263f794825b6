"""What waits in the streams of a world: actions, events, and waits for events."""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from kvd.testing.modelled.clock import ActionNumber, Clock, StreamIndex, joined, new_clock
from kvd.testing.modelled.shadow import Accesses

Run: TypeAlias = Callable[[], Accesses]
"""Carries an action out and returns which bytes it read and wrote."""

NAMES_KEPT_MAX: Final = 1 << 16
"""Actions of one stream that can still be described when a later one races with them."""


class ActionName(NamedTuple):
    """How findings call an action."""

    stream_name: str
    number: ActionNumber
    label: str
    note: str

    @property
    def sentence(self) -> str:
        """Return it as part of a sentence."""
        where = f" ({self.note})" if self.note else ""
        return f"action {self.number} of stream {self.stream_name!r}{where}: {self.label}"


class Action:
    """One piece of work between two points of its stream's order."""

    __slots__ = ("after", "clock", "enqueued_index", "name", "ready", "run", "stream_index")

    def __init__(
        self,
        *,
        name: ActionName,
        stream_index: StreamIndex,
        enqueued_index: int,
        clock: Clock,
        run: Run,
        after: Callable[[], None] | None,
        ready: Callable[[], bool] | None,
    ) -> None:
        self.name = name
        self.stream_index = stream_index
        self.enqueued_index = enqueued_index
        self.clock = clock
        """What is over when it begins; for its own stream, its own number."""
        self.run = run
        self.after = after
        """Called once it ran without a failure."""
        self.ready = ready
        """Asked before it may run; None if nothing but its predecessors holds it back."""

    @property
    def stream_name(self) -> str:
        """Return the stream that the action is on."""
        return self.name.stream_name


class Event:
    """A point in a queue's order; fires once, as reached or as failed."""

    __slots__ = ("clock", "failure", "fired", "queue", "where")

    def __init__(self, queue: "Queue") -> None:
        self.queue = queue
        self.clock = queue.tail
        """What is over once the event is reached."""
        self.where = queue.last
        """The action that it stands behind, None at the head of its stream."""
        self.fired = False
        self.failure: BaseException | None = None


class Wait(NamedTuple):
    """Later work of the queue runs behind an event."""

    event: Event


Item: TypeAlias = Action | Event | Wait


class Queue:
    """One stream of a world: what was enqueued and did not run yet, in order."""

    def __init__(self, name: str, index: StreamIndex) -> None:
        self.name = name
        self.index = index
        self.items: deque[Item] = deque()
        self.tail = new_clock()
        """What is over once everything enqueued so far is."""
        self.reached = self.tail
        """What was over when the newest action that ran began, itself included."""
        self.last: ActionName | None = None
        self.count = 0
        """Actions ever enqueued."""
        self.busy = False
        """An action of this queue is being run: it came back to the world from inside."""
        self.failure: BaseException | None = None
        self._names: list[ActionName] = []
        self._dropped_count = 0

    def wait(self, event: Event) -> None:
        """Put later work behind an event."""
        self.items.append(Wait(event))
        self.tail = joined(self.tail, event.clock)

    def record(self) -> Event:
        """Enqueue an event."""
        event = Event(self)
        self.items.append(event)
        return event

    def next_name(self, label: str, note: str, host_clock: Clock) -> ActionName:
        """Return the name and number of the next action, which the queue's clock then covers."""
        self.count += 1
        name = ActionName(self.name, ActionNumber(self.count), label, note)
        # What the host knows to be over when it enqueues is over before the action begins.
        self.tail = joined(self.tail, host_clock)
        self.tail[self.index] = self.count
        self.last = name
        self._names.append(name)
        if len(self._names) >= 2 * NAMES_KEPT_MAX:
            del self._names[:NAMES_KEPT_MAX]
            self._dropped_count += NAMES_KEPT_MAX
        return name

    def name_of(self, number: ActionNumber) -> ActionName:
        """Return the name of an earlier action."""
        place = number - 1 - self._dropped_count
        if place < 0:
            return ActionName(self.name, number, "no longer described", "")
        return self._names[place]

    def settle(self) -> None:
        """Pass the events and the fired waits at the head of the queue."""
        while self.items and not self.busy:
            head = self.items[0]
            if isinstance(head, Event):
                head.failure = self.failure
                head.fired = True
            elif isinstance(head, Wait):
                if self.failure is None:
                    if not head.event.fired:
                        return
                    self.failure = head.event.failure
            elif self.failure is None:
                return
            self.items.popleft()

    @property
    def head(self) -> Action | None:
        """Return the action that may run now, None if there is none."""
        if self.busy or not self.items:
            return None
        head = self.items[0]
        if not isinstance(head, Action) or (head.ready is not None and not head.ready()):
            return None
        return head

    @property
    def complaint(self) -> str:
        """Return what the queue waits for."""
        if self.busy:
            return f"stream {self.name!r} waits inside {self.last_run}"
        head = self.items[0]
        if isinstance(head, Wait):
            behind = head.event.where
            place = "its head" if behind is None else behind.sentence
            return (
                f"stream {self.name!r} waits for the event of stream "
                f"{head.event.queue.name!r} behind {place}"
            )
        assert isinstance(head, Action)
        return f"{head.name.sentence} is held back"

    last_run = "nothing"
    """The action that is running, or ran last."""
