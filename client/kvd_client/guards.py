"""Guards of a session: what must not be left half done poisons it, whatever the exception."""

from types import TracebackType
from typing import Protocol

from kvd_client.errors import DivergedError, ReplyError


class Guarded(Protocol):
    """What the guards need of a session."""

    applying: bool

    def check_usable(self) -> None:
        """Raise the reason why nothing can be asked any more, if there is one."""
        ...

    def poison(self, cause: str) -> None:
        """Refuse everything from now on."""
        ...

    def diverge(self, error: DivergedError) -> None:
        """Refuse everything from now on, because another operation was decided than ours."""
        ...


class Reading:
    """Guards reading an answer: one that cannot be right poisons, or ends the session."""

    def __init__(self, session: Guarded) -> None:
        self._session = session

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, DivergedError):
            self._session.diverge(error)
        elif isinstance(error, ReplyError):
            self._session.poison(error.message)


class Applying:
    """Guards applying: leaving it by any exception, an interrupt included, poisons the session."""

    def __init__(self, session: Guarded) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.applying = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._session.applying = False
        else:
            self._session.poison(f"an answer cannot be applied: {kind.__name__}: {error}")


class Enqueuing:
    """Guards the order of streams: if it cannot be established, this rank cannot go on."""

    def __init__(self, session: Guarded, what: str) -> None:
        self._session = session
        self._what = what

    def __enter__(self) -> None:
        self._session.check_usable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._session.poison(f"{self._what}: {kind.__name__}: {error}")
