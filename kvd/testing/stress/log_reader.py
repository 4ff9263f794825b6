"""A transport that keeps what is sent and decided, so that a rank's process can read the log."""

from kvd.testing.stress.failure import CheckName, StressFailure
from kvd_client.transport import Frames, MemoryDescriptor, Transport
from kvd_proto.codec import decode_header, decode_operation, decode_reply, split_batch
from kvd_proto.control import MessageKind, Ticket
from kvd_proto.operations import Operation
from kvd_proto.outcomes import FACT_PROGRAM, OWN_PROGRAM, Entry

LogEntry = tuple[Entry, Operation | None]
"""What was decided, and the operation, which is None for facts and entries of the daemon's own."""


class LogReader:
    """Passes everything on, and keeps the entries of the log that nobody took yet."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.position = 0
        """Up to where the log is known."""
        self._sent: dict[int, bytes] = {}
        self._entries: list[LogEntry] = []

    def start_at(self, position: int) -> None:
        """Forget what is there, and go on behind a position."""
        self.position = position
        self._sent.clear()
        self._entries.clear()

    def take(self) -> list[LogEntry]:
        """Return the entries that came since the last call."""
        entries, self._entries = self._entries, []
        return entries

    def open(self, deadline_ms: int) -> Ticket:
        """Connect; see `Transport`."""
        return self._inner.open(deadline_ms)

    def send(self, frames: Frames) -> None:
        """Send one message, and keep the operations of a batch."""
        header = decode_header(frames.header)
        if header.kind is MessageKind.BATCH:
            for index, raw in enumerate(split_batch(frames.body), header.index):
                self._sent[index] = bytes(raw)
        self._inner.send(frames)

    def wait(self, deadline_ms: int) -> None:
        """Block until a message is there; see `Transport`."""
        self._inner.wait(deadline_ms)

    async def wait_async(self, deadline_ms: int) -> None:
        """Wait until a message is there; see `Transport`."""
        await self._inner.wait_async(deadline_ms)

    def receive(self) -> Frames:
        """Return the message that is there, and keep what is new of the log in it."""
        frames = self._inner.receive()
        if decode_header(frames.header).kind is MessageKind.REPLY:
            reply = decode_reply(frames.body)
            if reply.position > self.position + 1:
                raise StressFailure(
                    CheckName.CLIENT,
                    f"a reply starts at position {reply.position}, the log is known up to "
                    f"{self.position}",
                )
            for entry in reply.entries[self.position + 1 - reply.position :]:
                self._entries.append((entry, self._operation_of(entry)))
                self.position += 1
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

    def _operation_of(self, entry: Entry) -> Operation | None:
        if entry.program in (OWN_PROGRAM, FACT_PROGRAM):
            return None
        return decode_operation(self._sent.pop(entry.index))
