"""A connected rank: how it is reached, what it may do, and what it waits for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.serve.lifeline import Lifeline
from kvd_proto.control import ErrorReply, Hello, Mode

if TYPE_CHECKING:
    from kvd.serve.group import Group


@dataclass(slots=True)
class Session:
    """One rank of a group; ``token`` names it in every message after its welcome."""

    identity: bytes
    """ZeroMQ routing id; a message with this session's token from elsewhere is refused."""
    token: int
    lifeline: Lifeline
    hello: Hello
    group: "Group"
    ended: ErrorReply | None = None
    """What every later message is answered with, once the incarnation is over."""
    following: bool = False
    """Whether a follow waits for entries."""

    @property
    def key(self) -> tuple[int, int]:
        """Return stage and rank."""
        return self.hello.stage, self.hello.rank

    @property
    def sends_operations(self) -> bool:
        """Return whether the rank's program decides; followers only apply."""
        return self.hello.mode is not Mode.FOLLOWER

    def describe(self) -> str:
        """Return stage, rank and process in words."""
        return f"stage {self.hello.stage} rank {self.hello.rank} (process {self.lifeline.pid})"
