"""Errors of the client library.

KvdError (kvd_proto.errors)
+-- KvdClientError           root; whatever the client raises on purpose
    +-- UnreachableError     no daemon answers at the address; the operator's fault
    +-- AttachError          the daemon refused the hello; the caller's fault, in the daemon's words
    +-- DeadlineError        an answer or a signal did not come in time; trying again can help
    +-- RefusedError         the daemon answered a request with an error; nothing was changed
    +-- OperationError       one operation of a batch was wrong use; those before it are done
    +-- UsageError           the client was called wrongly; nothing was sent
    |   +-- ClosedError          after close
    |   +-- ForkedError          in another process than the one that attached
    |   +-- StepOrderError       a launch or a notice out of order
    |   +-- UnknownRequestError  a request that this client never saw admitted
    +-- EndedError           the incarnation is over; every later call raises the same
    |   +-- FencedError          the daemon no longer knows this session
    |   +-- DivergedError        ranks did not ask for the same
    |   +-- RankLostError        a rank of the group ended
    +-- PoisonedError        this stub could not apply what was decided; attach again
    +-- TablesError          memory and the daemon's books differ; this rank is lost
    +-- ReplyError           an answer that cannot be read or does not fit the request
    +-- DeviceError          work on a stream or memory of the device failed
"""

from kvd_proto.errors import ErrorCode, KvdError


class KvdClientError(KvdError):
    """Root of the errors that the client library raises."""


class UnreachableError(KvdClientError):
    """No daemon answers at the address."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.UNREACHABLE, retry=True)


class AttachError(KvdClientError):
    """The daemon refused the hello; the message is the daemon's sentence."""


class DeadlineError(KvdClientError):
    """An answer or a signal did not come before its deadline."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.TIMED_OUT, retry=True)


class RefusedError(KvdClientError):
    """The daemon answered a request with an error and changed nothing."""


class OperationError(KvdClientError):
    """One operation of a batch was wrong use; the operations after it were not run."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.BAD_ARGUMENT) -> None:
        super().__init__(message, code=code)


class UsageError(KvdClientError):
    """The client was called wrongly; nothing was sent."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.BAD_ARGUMENT) -> None:
        super().__init__(message, code=code)


class ClosedError(UsageError):
    """The client was closed."""


class ForkedError(UsageError):
    """The client is used in another process than the one that attached it."""


class StepOrderError(UsageError):
    """A launch, a batch or a notice comes out of order."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.STEP_ORDER) -> None:
        super().__init__(message, code=code)


class UnknownRequestError(UsageError):
    """A request id that this client never saw admitted, or saw freed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.UNKNOWN_REQUEST)


class EndedError(KvdClientError):
    """The incarnation is over; attach again for the next one."""


class FencedError(EndedError):
    """The daemon no longer knows this session."""


class DivergedError(EndedError):
    """The ranks of the stage did not ask for the same."""


class RankLostError(EndedError):
    """A rank of the group ended or cannot go on."""


class PoisonedError(KvdClientError):
    """The stub could not apply what was decided; its rank is lost."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.POISONED)


class TablesError(KvdClientError):
    """A table in this rank's memory differs from the daemon's books; its rank is lost."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.INVARIANT)


class ReplyError(KvdClientError):
    """An answer cannot be read, or does not fit what was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.BAD_FRAME)


class DeviceError(KvdClientError):
    """Work on a stream or on memory of the device failed."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.DEVICE) -> None:
        super().__init__(message, code=code)


_ENDINGS: dict[str, type[EndedError]] = {
    ErrorCode.FENCED: FencedError,
    ErrorCode.DIVERGED: DivergedError,
    ErrorCode.RANK_LOST: RankLostError,
    ErrorCode.DRAINING: EndedError,
    ErrorCode.INVARIANT: EndedError,
    ErrorCode.INTERNAL: EndedError,
}


def code_of(code: str) -> ErrorCode:
    """Return a code of the wire; one that this build does not know is INTERNAL."""
    return ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.INTERNAL


def error_of(code: str, message: str, *, retry: bool = False) -> KvdClientError:
    """Return the error that an answer's code stands for: an ending, or a refused request."""
    if code not in ErrorCode.__members__:
        return RefusedError(f"{code}: {message}", retry=retry)
    return _ENDINGS.get(code, RefusedError)(message, code=ErrorCode(code), retry=retry)
