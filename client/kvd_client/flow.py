"""What a flow of the session asks its client to do, and the request it does it for."""

from collections.abc import Callable, Generator
from typing import Final, TypeAlias

import msgspec

from kvd_client.calls import Batch, Call
from kvd_client.transport import Message
from kvd_proto.control import Control, MessageKind
from kvd_proto.scalars import ProgramIndex


class Exchange(msgspec.Struct, frozen=True):
    """Send the message unless it is out, and wait for its answer."""

    message: Message
    deadline_ms: int


class HostWait(msgspec.Struct, frozen=True):
    """Run something that blocks the host; it keeps a deadline of its own."""

    wait: Callable[[], None]


FIRST_INDEX: Final = ProgramIndex(0)

Flow: TypeAlias = Generator[Exchange | HostWait, None, None]


class Outstanding:
    """A request that waits for its answer, and what the answer is needed for."""

    __slots__ = ("answer_type", "batch", "calls", "index_start", "kind", "message")

    def __init__(
        self,
        kind: MessageKind,
        message: Message,
        calls: list[Call],
        index_start: ProgramIndex = FIRST_INDEX,
        batch: Batch | None = None,
        answer_type: type[Control] | None = None,
    ) -> None:
        self.kind = kind
        self.message = message
        self.calls = calls
        self.index_start = index_start
        self.batch = batch
        self.answer_type = answer_type
        """What a question has to be answered with."""
