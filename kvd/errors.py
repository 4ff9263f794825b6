"""Errors of the daemon and the command line.

KvdError (kvd_proto.errors)
+-- DeclareError     the model's configuration cannot be turned into layers
+-- PlanError        the layers cannot share an arena as declared; names the layer
+-- SizeError        the numbers do not fit; names the number and what would be right
+-- SettingError     a setting is unknown, does not parse or is out of range
+-- FileError        a file is missing, unreadable or not what it should be
+-- OperationError   an operation names something wrong; nothing was changed
+-- DivergenceError  mirrored ranks sent different operations; the engine's schedulers' fault
+-- SessionError     a message from a peer that has no right to it now
+-- ServeError       the daemon or holder cannot start or be reached
+-- WorkloadError    a replayed workload cannot go on, or one of its processes failed
+-- LostError        a message got lost on purpose; the call may be repeated
+-- RaceError        two accesses to the same bytes that no order connects, in the modelled device
+-- InvariantError   kvd's own state is broken; work stops
+-- StressFailure    a check of the stress harness did not hold
"""

import reprlib

from kvd_proto.errors import ErrorCode, KvdError


def shown(value: object) -> str:
    """Return a value as messages show it, cut short where a file or a peer has an absurd one."""
    short = reprlib.Repr()
    short.maxstring = 80
    try:
        return short.repr(value)
    except ValueError:  # Python writes no whole number of more than a few thousand digits
        return f"a {type(value).__name__} with a number too long to show"


class DeclareError(KvdError):
    """The model's configuration cannot be turned into layers."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.BAD_MODEL)


class PlanError(KvdError):
    """The declared layers cannot share an arena."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.BAD_MODEL)


class SizeError(KvdError):
    """The byte budget or another sizing input does not fit the plan."""

    def __init__(self, message: str, *, short_bytes: int = 0) -> None:
        super().__init__(message, code=ErrorCode.BAD_MODEL)
        self.short_bytes = short_bytes


class SettingError(KvdError):
    """A setting is unknown, does not parse or is out of range."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.BAD_SETTING)


class FileError(KvdError):
    """A file is missing, unreadable or not what it should be."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.BAD_FILE)


class OperationError(KvdError):
    """An operation is wrong use; it names the value and changed nothing."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.BAD_ARGUMENT) -> None:
        super().__init__(message, code=code)


class SessionError(KvdError):
    """A message from a peer that has no right to send it now."""


class ServeError(KvdError):
    """The daemon or the holder cannot start, or cannot be reached."""


class WorkloadError(KvdError):
    """A replayed workload cannot go on, or one of its processes failed."""


class RaceError(KvdError):
    """Two accesses to the same bytes, at least one of them a write, that no order connects."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.INVARIANT)


class InvariantError(KvdError):
    """A named invariant does not hold; the state is no longer trustworthy."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}", code=ErrorCode.INVARIANT)
        self.name = name


class DivergenceError(KvdError):
    """Mirrored ranks sent different operations; the incarnation ends."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.DIVERGED)


class LostError(KvdError):
    """Raised by a faulty transport in place of what interrupts a call, which may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.UNREACHABLE, retry=True)


class StressFailure(KvdError):  # noqa: N818  # what a check of the harness found
    """A check of the stress harness did not hold."""

    def __init__(self, check: str, message: str, *, step_index: int = -1) -> None:
        super().__init__(f"{check}: {message}", code=ErrorCode.INVARIANT)
        self.check = check
        self.step_index = step_index
        """Place of the step that was played in its program; -1 before the first."""
