"""A Unix socket with a path that only one process serves and only one user reaches.

A lock file beside the socket decides who serves it. The lock goes with its process, however that
ends, so what a killed predecessor left behind is told apart from a living one and replaced.
"""

import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Final

from kvd.errors import ServeError
from kvd_proto.errors import ErrorCode

LOCK_SUFFIX: Final = ".lock"
_BACKLOG: Final = 16
_LOCK_TRIES: Final = 100
"""A lock file can vanish between opening and locking when its holder just ended; then once more."""


class Endpoint:
    """A listening SEQPACKET socket and the lock that makes it this process's own."""

    def __init__(self, path: Path, listener: socket.socket, lock: int) -> None:
        self.path = path
        self.listener = listener
        self._lock = lock

    def close(self) -> None:
        """Stop listening and take socket and lock file away."""
        self.listener.close()
        self.path.unlink(missing_ok=True)
        _lock_path(self.path).unlink(missing_ok=True)
        os.close(self._lock)


def open_endpoint(path: Path, *, what: str) -> Endpoint:
    """Lock a path, replace what a dead process left there, and listen.

    ``what`` is what is served, for errors. Raises ServeError when another process serves the path,
    or when its directory is open to other users.
    """
    _prepare_directory(path.parent)
    lock = _take_lock(path, what=what)
    try:
        listener = _bind(path)
    except OSError as error:
        os.close(lock)
        raise ServeError(f"cannot listen on {path}: {error}", code=ErrorCode.BAD_FILE) from error
    except BaseException:
        os.close(lock)
        raise
    return Endpoint(path, listener, lock)


def _prepare_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ServeError(
            f"cannot use {directory} for a socket: {error}", code=ErrorCode.BAD_FILE
        ) from error
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0) or mode & 0o022:
        raise ServeError(
            f"{directory} has mode {mode:04o} and belongs to uid {status.st_uid}: a socket needs a "
            f"directory that only uid {os.geteuid()} can write to (mode 0700)",
            code=ErrorCode.BAD_FILE,
        )


def _take_lock(path: Path, *, what: str) -> int:
    lock_path = _lock_path(path)
    for _ in range(_LOCK_TRIES):
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ServeError(
                f"cannot open the lock file {lock_path}: {error}", code=ErrorCode.BAD_FILE
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise ServeError(
                f"another {what} (pid {owner}) serves {path} already", code=ErrorCode.BUSY
            ) from None
        if _is_file_of(lock, lock_path):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)
            return lock
        os.close(lock)
    raise ServeError(f"the lock file {lock_path} vanished {_LOCK_TRIES} times in a row")


def _is_file_of(descriptor: int, path: Path) -> bool:
    """Return whether the path still names the open file."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The socket's mode follows the umask at the moment of binding.
    umask = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(umask)
    return listener


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + LOCK_SUFFIX)
