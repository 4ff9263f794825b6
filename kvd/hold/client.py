"""The daemon's side of the holder."""

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from kvd.errors import ServeError
from kvd.hold.message import (
    HOLD_VERSION,
    Answer,
    AnyRequest,
    Drop,
    Dropped,
    Found,
    Get,
    Greeting,
    HeldMemory,
    Kept,
    ListHeld,
    Listing,
    Put,
    Refused,
    decode_answer,
    encode,
)
from kvd.hold.store import check_name, read_nonce
from kvd_client.device import descriptors
from kvd_proto.errors import ErrorCode, FrameError

AnswerT = TypeVar("AnswerT", bound=Answer)

ANSWER_TIMEOUT_MS: Final = 5_000
"""A holder answers within a millisecond; one that does not for so long never will."""


class HolderClient:
    """A connection to a holder; one request at a time.

    After a time-out or another failure of the connection every later call fails too.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        timeout_ms: int = ANSWER_TIMEOUT_MS,
        process: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        """Take the greeting of the holder at the other end; raises ServeError."""
        self._sock = sock
        self._sock.settimeout(timeout_ms / 1000)
        self._timeout_ms = timeout_ms
        self._process = process
        greeting, (nonce,) = self._receive(Greeting, descriptors_count=1)
        try:
            if greeting.version != HOLD_VERSION:
                raise ServeError(
                    f"the holder speaks version {greeting.version}, this daemon {HOLD_VERSION}: "
                    "stop daemon and holder and start both anew",
                    code=ErrorCode.BAD_VERSION,
                )
            self._nonce = read_nonce(nonce)
        finally:
            os.close(nonce)

    @property
    def process(self) -> "subprocess.Popen[bytes] | None":
        """Return the holder's process if it was started for this client."""
        return self._process

    def put(self, name: str, descriptor: int, size_bytes: int) -> None:
        """Hand a descriptor in; it stays open here too. Raises ServeError for a name in use."""
        check_name(name)
        self._ask(Put(name, size_bytes), Kept, send=[descriptor])

    def held(self) -> tuple[HeldMemory, ...]:
        """Return what is kept, in order of names."""
        held: list[HeldMemory] = []
        while True:
            listing, _ = self._ask(ListHeld(len(held)), Listing)
            held.extend(listing.held)
            if len(held) >= listing.held_count or not listing.held:
                return tuple(held)

    def get(self, name: str) -> int:
        """Return a new descriptor of what is kept; raises ServeError for an unknown name."""
        _, (descriptor,) = self._ask(Get(name), Found, descriptors_count=1)
        return descriptor

    def drop(self, name: str) -> None:
        """Have a descriptor forgotten; raises ServeError for an unknown name."""
        self._ask(Drop(name), Dropped)

    def nonce(self) -> bytes:
        """Return the 32 bytes that are as old as the holder."""
        return self._nonce

    def close(self) -> None:
        """Part from the holder. One that was started for this client ends, and what it keeps."""
        self._sock.close()
        if self._process is None:
            return
        try:
            self._process.wait(self._timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(
        self,
        request: AnyRequest,
        wanted: type[AnswerT],
        *,
        send: Sequence[int] = (),
        descriptors_count: int = 0,
    ) -> tuple[AnswerT, list[int]]:
        """Send a request and return its answer with the descriptors that came along."""
        try:
            descriptors.send_message(self._sock, encode(request), send)
        except OSError as error:
            raise self._broken(error) from error
        return self._receive(wanted, descriptors_count=descriptors_count)

    def _receive(
        self, wanted: type[AnswerT], *, descriptors_count: int = 0
    ) -> tuple[AnswerT, list[int]]:
        """Return the next answer, which has to be of one kind, with its descriptors."""
        received: list[int] = []
        try:
            payload, received = descriptors.receive_message(self._sock, descriptors_count)
            answer = decode_answer(payload) if payload else None
        except (OSError, FrameError) as error:
            descriptors.close_all(received)
            raise self._broken(error) from error
        if isinstance(answer, wanted) and len(received) == descriptors_count:
            return answer, received
        descriptors.close_all(received)
        if isinstance(answer, Refused):
            code = (
                ErrorCode(answer.code)
                if answer.code in ErrorCode.__members__
                else ErrorCode.INTERNAL
            )
            raise ServeError(f"the holder refused: {answer.message}", code=code)
        self._sock.close()
        what = "ended" if answer is None else f"answered with a {type(answer).__name__}"
        raise ServeError(f"the holder {what}", code=ErrorCode.UNREACHABLE)

    def _broken(self, error: Exception) -> ServeError:
        """Close the connection, because a late answer would be taken for the next one's."""
        self._sock.close()
        if isinstance(error, TimeoutError):
            return ServeError(
                f"the holder did not answer within {self._timeout_ms} ms", code=ErrorCode.TIMED_OUT
            )
        return ServeError(
            f"the connection to the holder broke: {error}", code=ErrorCode.UNREACHABLE
        )


def connect(path: Path, *, timeout_ms: int = ANSWER_TIMEOUT_MS) -> HolderClient:
    """Connect to the holder that serves a path; raises ServeError when there is none."""
    try:
        sock = descriptors.connect(os.fspath(path), timeout_ms=timeout_ms)
    except OSError as error:
        raise ServeError(
            f"no holder answers at {path} ({error.strerror or error}); "
            f"start one with: kvd hold --socket {path}",
            code=ErrorCode.UNREACHABLE,
            retry=True,
        ) from error
    try:
        return HolderClient(sock, timeout_ms=timeout_ms)
    except BaseException:
        sock.close()
        raise
