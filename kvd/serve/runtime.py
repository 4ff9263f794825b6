"""The runtime directory and the lock: who may be here, and that only one daemon is.

ZeroMQ lets a second process bind the same path and take it over without a word, so the lock is
taken before anything is bound. It is a lock on an open file: it ends with the process, however that
ends, and a file left behind means nothing.
"""

import fcntl
import os
import resource
import stat
from pathlib import Path

from kvd.errors import ServeError
from kvd_proto.errors import ErrorCode

DIRECTORY_MODE = 0o700
SOCKET_UMASK = 0o077
SHARED_DIRECTORY_MODE = 0o711
"""Others may pass through, not look around."""
SHARED_SOCKET_MODE = 0o666
CLIENTS_COUNT_MAX = 4096
"""Clients at a time: far above eight ranks per stage and a few observers per host."""
CLIENT_DESCRIPTORS_COUNT = 5
"""What a client costs: lifeline, process, message connection, arena and fence page."""
OWN_DESCRIPTORS_COUNT = 64
"""What the daemon needs for itself: sockets, loop, holder, statistics and metrics."""


def prepare_directory(path: Path) -> None:
    """Create the runtime directory for this user alone; raises ServeError if others may write."""
    os.umask(SOCKET_UMASK)
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ServeError(f"cannot use runtime directory {path}: {error.strerror}") from error
    if found.st_uid != os.getuid():
        raise ServeError(
            f"runtime directory {path} belongs to user {found.st_uid}, not to {os.getuid()}; "
            f"choose another with --runtime-dir"
        )
    loose = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if loose:
        raise ServeError(
            f"runtime directory {path} is writable by others (mode "
            f"{stat.S_IMODE(found.st_mode):04o}); it must be 0700"
        )


def admit_other_users(directory: Path, sockets: tuple[Path, ...]) -> None:
    """Let other users reach the sockets; who of them may attach is asked of the kernel.

    Raises ServeError if the modes cannot be set. A ticket is handed out to allowed users alone, and
    nothing but statistics is answered without one.
    """
    try:
        directory.chmod(SHARED_DIRECTORY_MODE)
        for path in sockets:
            path.chmod(SHARED_SOCKET_MODE)
    except OSError as error:
        raise ServeError(f"cannot open {directory} to allowed_uids: {error.strerror}") from error


def raise_descriptor_limit() -> int:
    """Allow this process all the open files it may have; return how many clients they are for.

    Without room for another descriptor ZeroMQ ends the process, so that must never happen.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return CLIENTS_COUNT_MAX
    count = (hard - OWN_DESCRIPTORS_COUNT) // CLIENT_DESCRIPTORS_COUNT
    if count < 1:
        raise ServeError(
            f"{hard} open files are allowed, too few for a daemon with one client: "
            f"{OWN_DESCRIPTORS_COUNT + CLIENT_DESCRIPTORS_COUNT} are needed; raise ulimit -n"
        )
    return min(count, CLIENTS_COUNT_MAX)


def clear_socket(path: Path) -> None:
    """Remove the socket that an earlier daemon left; raises ServeError if it is something else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ServeError(f"cannot use socket path {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ServeError(
            f"{path} is there already and is no socket; remove it or choose another --socket",
            code=ErrorCode.BAD_SETTING,
        )
    path.unlink()


class DaemonLock:
    """An exclusive lock beside the socket, held as long as the daemon lives."""

    def __init__(self, path: Path) -> None:
        """Take the lock; raises ServeError naming the process that has it."""
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServeError(
                f"cannot open lock {path}: {error.strerror}; the folder of --socket must exist"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise ServeError(
                f"another daemon (process {holder or 'unknown'}) serves this path: {path} is "
                f"locked; stop it or choose another --socket",
                code=ErrorCode.BUSY,
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Remove the file and give the lock back."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
