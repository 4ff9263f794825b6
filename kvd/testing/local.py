"""A daemon of one's own: started in a private folder, ready before it is used, gone afterwards."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from select import select
from typing import Final

from kvd.errors import ServeError
from kvd.testing.processes import end_process, ending_of, start_process, tail_of

READY_WAIT_S: Final = 20.0
"""How long the daemon may take to get ready: normally well below a second."""
STOP_WAIT_S: Final = 20.0
"""How long it may take to stop: its own drain limit is half of that."""

_START: Final = """
import sys
from kvd.testing.child import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from kvd.cli.main import main
main()
"""
"""Runs the command line with a tie to this process that the daemon of an operator does not have."""


class LocalDaemon:
    """``kvd serve`` with its holder in a private folder, for as long as the context lasts."""

    def __init__(self, *, arguments: Sequence[str] = ()) -> None:
        """Prepare; ``arguments`` are further options of ``kvd serve``."""
        self._arguments = tuple(arguments)
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.returncode = 0
        """How the daemon ended, once the context is left."""

    def __enter__(self) -> "LocalDaemon":
        """Start the daemon and wait until it is ready.

        Raises ServeError with the daemon's own words if it does not get ready.
        """
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="kvd-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._complaints = stack.enter_context(tempfile.TemporaryFile())
            self._process = start_process(
                (
                    "-c",
                    _START,
                    str(os.getpid()),
                    "serve",
                    "--runtime-dir",
                    str(self.folder),
                    *self._arguments,
                ),
                stdout=subprocess.PIPE,
                stderr=self._complaints,
            )
            stack.callback(self._stop)
            self._wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the daemon as a service manager would, and remove its folder."""
        self._stack.close()

    @property
    def socket_path(self) -> Path:
        """Return the path that clients connect to."""
        return self.folder / "kvd.sock"

    @property
    def stats_path(self) -> Path:
        """Return the path of the read-only socket."""
        return Path(f"{self.socket_path}.stats")

    @property
    def pid(self) -> int:
        """Return the daemon's process id."""
        assert self._process is not None
        return self._process.pid

    def complaints(self) -> str:
        """Return the end of what the daemon wrote to its stderr."""
        return tail_of(self._complaints)

    def _wait_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select([self._process.stdout], [], [], READY_WAIT_S)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            end_process(self._process, kill=not readable)
            raise ServeError(
                f"the daemon did not get ready: it {ending_of(self._process.returncode)}; "
                f"{self.complaints()}"
            )

    def _stop(self) -> None:
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.returncode = process.returncode
        if process.stdout is not None:
            process.stdout.close()
