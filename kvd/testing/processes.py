"""The processes of a replay as their parent sees them: started, listened to, and surely ended."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from typing import IO, Final, Protocol

import msgspec

from kvd.testing.messages import FromRank, Leave, RankFailure, RankSpec

EXIT_WAIT_S: Final = 5.0
"""How long a process that was told to end may take before it is killed."""
COMPLAINT_CHARACTERS_MAX: Final = 2_000
"""How much of what a dead process wrote to its stderr is shown: the end, where the cause stands."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)


class Descriptor(Protocol):
    """Anything that has a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""
        ...


class RankProcess:
    """A rank's process and the pipe to it. Leaving it as a context kills it if it still runs."""

    def __init__(self, spec: RankSpec, *, passed: Sequence[Descriptor] = ()) -> None:
        """Start the process; ``passed`` are descriptors that it inherits under their numbers."""
        self.rank_index = spec.rank_index
        self.pipe, theirs = Pipe(duplex=True)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 closed in __exit__
        arguments = (str(theirs.fileno()), str(os.getpid()))
        self._process = start_process(
            ("-m", "kvd.testing.rank", *arguments),
            stdout=subprocess.DEVNULL,
            stderr=self._complaints,
            passed=(theirs, *passed),
        )
        theirs.close()
        self._send(_encoder.encode(spec))

    def __enter__(self) -> "RankProcess":
        return self

    def __exit__(self, *_: object) -> None:
        end_process(self._process, kill=True)
        self.pipe.close()
        self._complaints.close()

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    def receive(self) -> FromRank:
        """Return the next message; a pipe that ended without one is a RankFailure."""
        try:
            return _decoder.decode(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return RankFailure(error="Ended", message=self._ending(), trace=self.complaints())

    def leave(self) -> int:
        """Tell the rank to part from the daemon and return its exit code."""
        self._send(_encoder.encode(Leave()))
        end_process(self._process, kill=False)
        return self._process.returncode

    def complaints(self) -> str:
        """Return the end of what the process wrote to its stderr."""
        return tail_of(self._complaints)

    def _send(self, message: bytes) -> None:
        try:
            self.pipe.send_bytes(message)
        except OSError:
            # The process has ended; the next receive says so, with its exit code.
            return

    def _ending(self) -> str:
        end_process(self._process, kill=False)
        return f"process {self._process.pid} {ending_of(self._process.returncode)}"


def start_process(
    arguments: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    passed: Sequence[Descriptor] = (),
) -> "subprocess.Popen[bytes]":
    """Start this Python with arguments, in a session of its own.

    So Ctrl-C reaches only the parent, which ends the others in order.
    """
    return subprocess.Popen(
        (sys.executable, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=[item.fileno() for item in passed],
        start_new_session=True,
    )


def end_process(process: "subprocess.Popen[bytes]", *, kill: bool) -> None:
    """Wait for a process that should end by itself, then, or at once, kill it; reap it."""
    if not kill:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_WAIT_S)
    if process.poll() is None:
        process.kill()
    process.wait()


def ending_of(returncode: int) -> str:
    """Return how a process ended, in words."""
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"


def tail_of(stream: IO[bytes]) -> str:
    """Return the end of a file that another process writes."""
    size = os.fstat(stream.fileno()).st_size
    start = max(0, size - COMPLAINT_CHARACTERS_MAX)
    return os.pread(stream.fileno(), size - start, start).decode(errors="replace").strip()
