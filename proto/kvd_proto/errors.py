"""The error tree's root and the stable codes that cross the wire.

KvdError                 root of every error that kvd raises, here, in the daemon and in the client
"""

from enum import StrEnum
from typing import Final

MESSAGE_CHARACTERS_MAX: Final = 1000
"""Longest message of an error; what a peer or a file said may be as long as a frame."""


class ErrorCode(StrEnum):
    """Stable names of what can go wrong; a code never changes its meaning."""

    BAD_FRAME = "BAD_FRAME"
    """A message that cannot be decoded, or with another number of frames than two."""
    FRAME_TOO_LARGE = "FRAME_TOO_LARGE"
    """A message over the frame cap."""
    BAD_VERSION = "BAD_VERSION"
    """No protocol version in common."""
    BAD_HELLO = "BAD_HELLO"
    """A hello whose values contradict themselves or the daemon's settings."""
    BAD_MODEL = "BAD_MODEL"
    """A model declaration that cannot be read, planned or sized."""
    GROUP_MISMATCH = "GROUP_MISMATCH"
    """A hello that differs from what the group's other ranks declared."""
    RANK_TAKEN = "RANK_TAKEN"
    """A hello for a rank that is attached already."""
    GROUP_INCOMPLETE = "GROUP_INCOMPLETE"
    """The other ranks of the group did not come before the deadline."""
    BUSY = "BUSY"
    """Memory of an earlier incarnation is not quiet yet."""
    FENCED = "FENCED"
    """A stale epoch, token or incarnation; nothing was changed."""
    FORBIDDEN = "FORBIDDEN"
    """The peer's credentials or role do not allow this."""
    BAD_INDEX = "BAD_INDEX"
    """A batch whose program index is neither the next one nor a repetition."""
    BAD_REQUEST_ID = "BAD_REQUEST_ID"
    """A request id that is zero, negative, repeated or not ascending."""
    UNKNOWN_REQUEST = "UNKNOWN_REQUEST"
    """A request id that no admitted, unfinished request has."""
    BAD_ARGUMENT = "BAD_ARGUMENT"
    """Any other argument outside its range."""
    BAD_PAGE = "BAD_PAGE"
    """A page that is not bound: the sink, out of range, or freed already."""
    BAD_NUMBER = "BAD_NUMBER"
    """A new value, copy or transfer whose number is not higher than those of its kind before."""
    UNKNOWN_NUMBER = "UNKNOWN_NUMBER"
    """A number under which no value, copy or transfer is that could do what is asked."""
    IN_USE = "IN_USE"
    """Pages that a step, a copy or a transfer still needs as they are."""
    STEP_ORDER = "STEP_ORDER"
    """A launch or processed notice out of order."""
    STEP_IN_FLIGHT = "STEP_IN_FLIGHT"
    """An operation that has to wait until the launched step is processed."""
    DIVERGED = "DIVERGED"
    """Mirrored ranks sent different operations."""
    RANK_LOST = "RANK_LOST"
    """A rank of the incarnation ended or reported that it cannot go on."""
    POISONED = "POISONED"
    """This stub failed while it applied effects; its rank is reported as lost."""
    DEVICE = "DEVICE"
    """Memory, a stream or a fence of the device refused or failed."""
    TIMED_OUT = "TIMED_OUT"
    """An answer or a signal did not come before its deadline."""
    UNREACHABLE = "UNREACHABLE"
    """No daemon, holder or helper answers at the given path."""
    BAD_SETTING = "BAD_SETTING"
    """A setting that is unknown, does not parse or is out of range."""
    BAD_FILE = "BAD_FILE"
    """A file that is missing, unreadable or not what its name promises."""
    DRAINING = "DRAINING"
    """The daemon is stopping and takes nothing new."""
    INVARIANT = "INVARIANT"
    """A broken invariant: the state is no longer trustworthy."""
    INTERNAL = "INTERNAL"
    """A fault of kvd itself."""


def clip_text(text: str) -> str:
    """Return a text that is no longer than an error's message may be, its start and end kept."""
    if len(text) <= MESSAGE_CHARACTERS_MAX:
        return text
    half = MESSAGE_CHARACTERS_MAX // 2 - 20
    return f"{text[:half]} ... ({len(text)} characters) ... {text[-half:]}"


class KvdError(Exception):
    """Root of all errors of kvd; carries a stable code and whether trying again can help.

    A message is cut to `MESSAGE_CHARACTERS_MAX`: it is answered, logged and kept, and the value
    that it names may be of any length.
    """

    def __init__(
        self, message: str, *, code: ErrorCode = ErrorCode.INTERNAL, retry: bool = False
    ) -> None:
        message = clip_text(message)
        super().__init__(message)
        self.message = message
        self.code = code
        self.retry = retry


class FrameError(KvdError):
    """A frame cannot be decoded; the sender's fault."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.BAD_FRAME) -> None:
        super().__init__(message, code=code)
