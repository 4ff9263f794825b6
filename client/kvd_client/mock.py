"""A transport without a network: a function plays the daemon."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import PAGE_BYTES, create_fence_page
from kvd_client.errors import ClosedError, DeadlineError, UsageError
from kvd_client.transport import Frames, MemoryDescriptor
from kvd_proto.codec import decode_control, decode_header, encode
from kvd_proto.control import Header, MessageKind, Ticket, Welcome

Answer: TypeAlias = tuple[Header, bytes]
"""A header and an encoded body."""

Daemon: TypeAlias = Callable[[Header, bytes], Sequence[Answer]]
"""Takes a header and an encoded body; gives any number of answers, usually one."""

ANSWERS_MAX = 1024
"""Answers that may wait to be received; a test that needs more is in a loop."""


class MockTransport:
    """Hands every message to a function and its answers back; memory is made on demand.

    ``sent`` holds what came in, oldest first. A wait without an answer raises DeadlineError at
    once.
    """

    def __init__(self, daemon: Daemon, *, ticket: int = 1) -> None:
        self._daemon = daemon
        self._ticket = ticket
        self._answers: deque[Frames] = deque()
        self._arena_bytes = 0
        self.sent: list[tuple[Header, bytes]] = []
        self.closed = False
        self.let_go_count = 0
        """How often the client said that it is done with its memory."""

    def open(self, deadline_ms: int) -> Ticket:
        """Return the ticket; there is nothing to connect to."""
        return Ticket(ticket=self._ticket, epoch=0)

    def send(self, frames: Frames) -> None:
        """Let the function answer."""
        if self.closed:
            raise ClosedError("the mock connection is closed")
        header = decode_header(frames.header)
        self.sent.append((header, frames.body))
        for one, body in self._daemon(header, frames.body):
            self.push(one, body)

    def push(self, header: Header, body: bytes) -> None:
        """Put an answer into the queue, as a daemon would that answers late."""
        if header.kind == MessageKind.WELCOME:
            welcome = decode_control(body)
            if isinstance(welcome, Welcome):
                self._arena_bytes = welcome.plan.total_bytes
        if len(self._answers) >= ANSWERS_MAX:
            raise UsageError(f"more than {ANSWERS_MAX} answers wait in the mock transport")
        self._answers.append(Frames(encode(header), body))

    def wait(self, deadline_ms: int) -> None:
        """Return if an answer waits; raises DeadlineError at once if none does."""
        if not self._answers:
            raise DeadlineError(f"no answer from the mock daemon within {deadline_ms} ms")

    async def wait_async(self, deadline_ms: int) -> None:
        """Do what `wait` does."""
        self.wait(deadline_ms)

    def receive(self) -> Frames:
        """Return the oldest answer."""
        return self._answers.popleft()

    def fetch(self, token: int, deadline_ms: int) -> dict[str, MemoryDescriptor]:
        """Return fresh memory of the size that the last welcome's plan has."""
        page = create_fence_page("mock-fence")
        arena = create_memory("mock-arena", self._arena_bytes)
        return {
            "arena": MemoryDescriptor(arena, self._arena_bytes),
            "fence": MemoryDescriptor(page, PAGE_BYTES),
        }

    def let_go(self) -> None:
        """Take note that the memory is not touched any more."""
        self.let_go_count += 1

    def close(self) -> None:
        """Refuse everything from now on."""
        self.closed = True
