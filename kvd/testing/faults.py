"""A transport that loses, repeats and delays messages, as often as it is told to.

What reaches a session is what reaches it in production when something interrupts a call: the
request may not have gone out, or its answer is gone. The session then sends the same request again,
and the daemon has to take it for the same one (architecture 3, exactly once). Repeated and late
messages are what a session in trouble leaves behind in the sockets.
"""

import os
import signal
import time
from collections import Counter, deque
from enum import StrEnum
from random import Random
from typing import Final

import msgspec

from kvd_client.transport import Frames, MemoryDescriptor, Transport
from kvd_proto.control import Ticket

OLD_FRAMES_COUNT: Final = 6
"""How many of its last messages a faulty transport may send once more."""
DELAY_S_MAX: Final = 0.002


class Fault(StrEnum):
    """What may happen to one message."""

    LOSE_REQUEST = "lose_request"
    """The call is interrupted before the request goes out."""
    LOSE_ANSWER = "lose_answer"
    """The call is interrupted when the answer is there; nobody reads it."""
    DOUBLE = "double"
    """The request goes out twice in a row."""
    REPEAT_OLD = "repeat_old"
    """A request of before, which was answered, goes out once more ahead of this one."""
    DELAY = "delay"
    """The request goes out late."""


class FaultRates(msgspec.Struct, frozen=True, kw_only=True):
    """How many of a thousand messages meet each fault."""

    lose_request_permille: int = 0
    lose_answer_permille: int = 0
    double_permille: int = 0
    repeat_old_permille: int = 0
    delay_permille: int = 0


class LostError(Exception):
    """Raised by a faulty transport in place of what interrupts a call; the call may be repeated."""


class FaultyTransport:
    """Passes everything on to another transport, but for the faults.

    Nothing happens before `armed` is set, so that a rank attaches in peace.
    """

    def __init__(self, inner: Transport, *, rates: FaultRates, seed: str) -> None:
        """Draw faults from a generator of its own, so that a run has the same ones each time."""
        self._inner = inner
        self._rates = rates
        self._random = Random(seed)
        self._old: deque[Frames] = deque(maxlen=OLD_FRAMES_COUNT)
        self.armed = False
        self._calls_to_death = 0
        self.counts: Counter[Fault] = Counter()
        """Faults that happened so far."""

    def die_after(self, calls_count: int) -> None:
        """Have this process be killed when so many more messages have gone out or come in."""
        self._calls_to_death = calls_count

    def die_if_due(self) -> None:
        """Kill this process if it was to die, however few messages there were since."""
        if self._calls_to_death:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, deadline_ms: int) -> Ticket:
        """Connect; see `Transport`."""
        return self._inner.open(deadline_ms)

    def send(self, frames: Frames) -> None:
        """Send one message, perhaps late, twice or behind an old one; raises LostError."""
        self._come_to_death()
        rates = self._rates
        if self._meets(Fault.LOSE_REQUEST, rates.lose_request_permille):
            raise LostError("the request was lost on its way out")
        if self._meets(Fault.DELAY, rates.delay_permille):
            time.sleep(self._random.uniform(0.0, DELAY_S_MAX))
        if self._old and self._meets(Fault.REPEAT_OLD, rates.repeat_old_permille):
            self._inner.send(self._random.choice(self._old))
        self._inner.send(frames)
        if self._meets(Fault.DOUBLE, rates.double_permille):
            self._inner.send(frames)
        if self.armed:
            # What was sent before, such as a hello, goes out once in a session's life.
            self._old.append(frames)

    def wait(self, deadline_ms: int) -> None:
        """Block until a message is there; see `Transport`."""
        self._inner.wait(deadline_ms)

    async def wait_async(self, deadline_ms: int) -> None:
        """Wait until a message is there; see `Transport`."""
        await self._inner.wait_async(deadline_ms)

    def receive(self) -> Frames:
        """Return the message that is there; raises LostError, and then it is gone."""
        frames = self._inner.receive()
        self._come_to_death()
        if self._meets(Fault.LOSE_ANSWER, self._rates.lose_answer_permille):
            raise LostError("the answer was lost on its way in")
        return frames

    def fetch(self, token: int, deadline_ms: int) -> dict[str, MemoryDescriptor]:
        """Return the session's descriptors; see `Transport`."""
        return self._inner.fetch(token, deadline_ms)

    def let_go(self) -> None:
        """Say that nothing touches the memory any more; see `Transport`."""
        self._inner.let_go()

    def close(self) -> None:
        """Close everything; see `Transport`."""
        self._inner.close()

    def _come_to_death(self) -> None:
        if self._calls_to_death:
            if self._calls_to_death == 1:
                self.die_if_due()
            self._calls_to_death -= 1

    def _meets(self, fault: Fault, permille: int) -> bool:
        """Return whether a message meets a fault, which is drawn even where it does not count."""
        meets = self._random.randrange(1000) < permille and self.armed
        if meets:
            self.counts[fault] += 1
        return meets
