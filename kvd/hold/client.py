"""The daemon's side of the holder."""

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

CallT = TypeVar("CallT")

ANSWER_TIMEOUT_MS: Final = 5_000
"""A holder answers within a millisecond; one that does not for so long never will."""
RECONNECT_TIMEOUT_MS: Final = 500
"""Each call tries a lost holder again, so one that hangs must not stop the daemon for long."""


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
        log: Callable[[str], None] | None = None,
    ) -> None:
        """Take the greeting of the holder at the other end; raises ServeError."""
        self._sock = sock
        self._process = process
        self._log: Callable[[str], None] | None = None
        self._loss = ""
        self.allow(timeout_ms)
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
        self._log = log

    @property
    def connected(self) -> bool:
        """Return whether the connection works still; after a failure it never does again."""
        return self._sock.fileno() != -1

    def allow(self, timeout_ms: int) -> None:
        """Set how long the holder may take for each answer from now on."""
        self._timeout_ms = timeout_ms
        self._sock.settimeout(timeout_ms / 1000)

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
        if not self.connected:
            raise self._lost(self._loss, ErrorCode.UNREACHABLE)
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
        what = "ended" if answer is None else f"answered with a {type(answer).__name__}"
        raise self._lost(f"the holder {what}", ErrorCode.UNREACHABLE)

    def _broken(self, error: Exception) -> ServeError:
        """Close the connection and return what to raise for an error of it."""
        if isinstance(error, TimeoutError):
            return self._lost(
                f"the holder did not answer within {self._timeout_ms} ms", ErrorCode.TIMED_OUT
            )
        return self._lost(f"the connection to the holder broke: {error}", ErrorCode.UNREACHABLE)

    def _lost(self, loss: str, code: ErrorCode) -> ServeError:
        """Close the connection, because a late answer would be taken for the next one's."""
        if self.connected:
            self._sock.close()
            self._loss = loss
            if self._log is not None:
                self._log(f"event=holder_lost problem={loss!r}")
        remedy = ""
        if self._process is not None:
            remedy = (
                f"; this daemon's own holder (pid {self._process.pid}) cannot be replaced while it "
                "runs: restart the daemon"
            )
        return ServeError(loss + remedy, code=code)


@dataclass(frozen=True, slots=True)
class _Handed:
    """A descriptor that was handed in, which its owner keeps open until it is dropped."""

    descriptor: int
    size_bytes: int
    file: tuple[int, int] | None
    """Device and inode: whether a descriptor is this memory's still."""


class ExternalHolder:
    """The holder at a path, connected again by the next call after it was lost.

    A holder that starts anew keeps nothing, so it gets again what was put and not dropped; put
    leaves the descriptors with their owner, who has to keep them open until the drop.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_ms: int = ANSWER_TIMEOUT_MS,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """Connect; ``log`` is told when the holder is lost and back. Raises ServeError."""
        self._path = path
        self._timeout_ms = timeout_ms
        self._log = log
        self._handed: dict[str, _Handed] = {}
        self._was_lost = False
        self._client: HolderClient | None = _open(path, timeout_ms)
        self._nonce = self._client.nonce()

    def put(self, name: str, descriptor: int, size_bytes: int) -> None:
        """Hand a descriptor in; it stays open here too. Raises ServeError for a name in use."""
        self._call(lambda client: client.put(name, descriptor, size_bytes))
        self._handed[name] = _Handed(descriptor, size_bytes, _file_of(descriptor))

    def held(self) -> tuple[HeldMemory, ...]:
        """Return what is kept, in order of names."""
        return self._call(lambda client: client.held())

    def get(self, name: str) -> int:
        """Return a new descriptor of what is kept; raises ServeError for an unknown name."""
        return self._call(lambda client: client.get(name))

    def drop(self, name: str) -> None:
        """Have a descriptor forgotten; raises ServeError for an unknown name.

        What went with a lost holder is forgotten already, which is no error.
        """
        # First, so that a holder that is connected again during this call does not get it again.
        handed = self._handed.pop(name, None)
        try:
            self._call(lambda client: client.drop(name))
        except ServeError as error:
            went = handed is not None and self._was_lost
            if not (went and error.code is ErrorCode.BAD_ARGUMENT):
                raise

    def nonce(self) -> bytes:
        """Return the 32 bytes that are as old as the holder that answered last."""
        return self._nonce

    def close(self) -> None:
        """Part from the holder, which goes on keeping what it has."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self, work: Callable[[HolderClient], CallT]) -> CallT:
        """Ask the holder, at most once more over a new connection; raises ServeError.

        Asking twice is safe: `_restore` takes back whatever the first request may have done.
        """
        if self._client is not None:
            try:
                return work(self._client)
            except ServeError as error:
                if self._client.connected:
                    raise
                self._lose(error)
                if error.code is ErrorCode.TIMED_OUT:  # it hangs: this call waited long enough
                    raise
        client = self._reconnect()
        try:
            return work(client)
        except ServeError as error:
            if not client.connected:
                self._lose(error)
            raise

    def _lose(self, error: ServeError) -> None:
        self._client = None
        self._was_lost = True
        self._tell(f"event=holder_lost path={self._path} problem={error.message!r}")

    def _reconnect(self) -> HolderClient:
        """Connect again and bring the holder up to date; raises ServeError."""
        client = _open(self._path, min(self._timeout_ms, RECONNECT_TIMEOUT_MS))
        try:
            restored_count = self._restore(client)
        except BaseException:
            client.close()
            raise
        client.allow(self._timeout_ms)
        same = client.nonce() == self._nonce
        self._nonce = client.nonce()
        self._client = client
        self._tell(
            f"event=holder_back path={self._path} same_holder={str(same).lower()} "
            f"restored_count={restored_count}"
        )
        return client

    def _restore(self, client: HolderClient) -> int:
        """Make the holder keep what is handed in and nothing else; returns how many it got.

        Anything else is what a request that broke off left, or another daemon that used the holder
        meanwhile and is gone.
        """
        kept: list[str] = []
        for item in client.held():
            handed = self._handed.get(item.name)
            if handed is not None and _is_kept(client, item.name, handed):
                kept.append(item.name)
                continue
            client.drop(item.name)
            self._tell(f"event=holder_dropped name={item.name} size_bytes={item.size_bytes}")
        restored_count = 0
        for name, handed in self._handed.items():
            if name in kept:
                continue
            try:
                if _file_of(handed.descriptor) != handed.file:
                    raise ServeError(
                        f"descriptor {handed.descriptor} of {name!r} was closed before its drop"
                    )
                client.put(name, handed.descriptor, handed.size_bytes)
            except ServeError as error:
                if not client.connected:
                    raise
                self._tell(f"event=holder_not_restored name={name} problem={error.message!r}")
            else:
                restored_count += 1
        return restored_count

    def _tell(self, line: str) -> None:
        if self._log is not None:
            self._log(line)


def connect(
    path: Path,
    *,
    timeout_ms: int = ANSWER_TIMEOUT_MS,
    log: Callable[[str], None] | None = None,
) -> ExternalHolder:
    """Connect to the holder that serves a path; raises ServeError when there is none.

    It is also raised, with the pid, when another daemon uses that holder.
    """
    return ExternalHolder(path, timeout_ms=timeout_ms, log=log)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode behind a descriptor, None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_kept(client: HolderClient, name: str, handed: _Handed) -> bool:
    """Return whether the holder surely keeps the memory that was handed in under a name.

    Files of a GPU's driver all look alike, so memory of a GPU is handed in anew.
    """
    descriptor = client.get(name)
    try:
        return descriptors.is_host_memory(descriptor) and _file_of(descriptor) == handed.file
    finally:
        os.close(descriptor)


def _open(path: Path, timeout_ms: int) -> HolderClient:
    """Open one connection to the holder at a path; raises ServeError when there is none."""
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
