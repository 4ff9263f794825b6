"""``kvd serve`` as a test sees it: in a folder of its own, with its log, surely ended."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final

from kvd.cli.query import fetch_health, fetch_statistics
from kvd_client.device.descriptors import open_pidfd, process_ended

DEADLINE_S: Final = 20.0
"""For what has to happen: far more than it takes, so that it only ends a hang."""
KVD: Final = """
import os, sys
from kvd.testing.child import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from kvd.cli.main import main
main()
"""
"""The command line, tied to this process, so that a killed test run leaves nothing running."""


def command(*arguments: str, program: str = KVD) -> tuple[str, ...]:
    """Return how to run the command line in a process that ends with this one."""
    return (sys.executable, "-c", program, str(os.getpid()), *arguments)


def environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """Return this environment without settings of kvd and of a service manager."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KVD_") and name not in ("NOTIFY_SOCKET", "LISTEN_FDS")
    }
    return kept | dict(extra)


def run_kvd(
    *arguments: str, timeout_s: float = DEADLINE_S, extra: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment(extra),
    )


def errors_of(stderr: str) -> list[str]:
    """Return what a user reads as errors."""
    return [line for line in stderr.splitlines() if line.startswith(("error", "Error"))]


def wait_until(what: str, holds: Callable[[], object], *, deadline_s: float = DEADLINE_S) -> None:
    """Block until something holds; fails naming what did not."""
    end = monotonic() + deadline_s
    pause = Event()
    while not holds():
        assert monotonic() < end, f"not within {deadline_s} s: {what}"
        pause.wait(0.005)


class DaemonProcess:
    """A running daemon."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        extra: Mapping[str, str] = {},
        files_max: int | None = None,
        program: str = KVD,
    ) -> None:
        """Start it; it is not ready before `wait_ready` returns."""
        self.folder = folder
        limit = ("prlimit", f"--nofile={files_max}") if files_max else ()
        self._log_path = folder.with_name(folder.name + ".log")
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                (
                    *limit,
                    *command("serve", "--runtime-dir", str(folder), *arguments, program=program),
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(extra),
                start_new_session=True,
            )
        self.ready_line = ""
        self.holder_pids: list[int] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def socket_path(self) -> Path:
        return self.folder / "kvd.sock"

    @property
    def address(self) -> str:
        return f"ipc://{self.socket_path}"

    def log(self) -> str:
        """Return everything the daemon wrote to stderr."""
        return self._log_path.read_text()

    def wait_ready(self) -> None:
        """Block until the line came that says so."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, self.log()
        self.ready_line = self.process.stdout.readline()
        assert self.ready_line, self.log()
        self.holder_pids = children_of(self.pid)

    def stats(self) -> dict[str, Any]:
        """Return the statistics document as published last."""
        document: dict[str, Any] = json.loads(
            fetch_statistics(Path(f"{self.socket_path}.stats")).decode()
        )
        return document

    def fresh_stats(self) -> dict[str, Any]:
        """Return a statistics document that was published after this call."""
        first = self.stats()["daemon"]["published_at"]
        newest: list[dict[str, Any]] = []

        def is_newer() -> bool:
            newest[:] = [self.stats()]
            return bool(newest[0]["daemon"]["published_at"] > first)

        wait_until("statistics are published again", is_newer)
        return newest[0]

    def group(self, name: str) -> dict[str, Any] | None:
        """Return a group of a fresh document, or None if there is none of this name."""
        groups = self.fresh_stats()["groups"]
        return next((group for group in groups if group["name"] == name), None)

    def health(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            fetch_health(Path(f"{self.socket_path}.stats")).decode()
        )
        return document

    def lives(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code, once there is one."""
        return self.process.wait(DEADLINE_S)

    def stop(self) -> int:
        """Stop it as a service manager would; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """End it in any case and wait for its holder's end."""
        if self.lives():
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def serving(
    folder: Path, *arguments: str, extra: Mapping[str, str] = {}, files_max: int | None = None
) -> Generator[DaemonProcess]:
    """Give a daemon that is ready, and end it; ``files_max`` is its limit of open files."""
    daemon = DaemonProcess(folder, *arguments, extra=extra, files_max=files_max)
    try:
        daemon.wait_ready()
        yield daemon
    finally:
        daemon.close()


def children_of(pid: int) -> list[int]:
    """Return the processes that a process started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in children.split()]


def wait_ended(pid: int) -> None:
    """Block until a process that may be no child of ours is gone."""
    try:
        pidfd = open_pidfd(pid)
    except Exception:
        return
    try:
        wait_until(f"process {pid} ends", lambda: process_ended(pidfd))
    finally:
        os.close(pidfd)


def keepers_of_memory(mark: str) -> list[str]:
    """Return every open descriptor and mapping on this host whose memfd's name holds ``mark``."""
    found: list[str] = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            links = [os.readlink(one) for one in (process / "fd").iterdir()]
            maps = (process / "maps").read_text().splitlines()
        except OSError:
            continue  # it ended meanwhile, or is not ours to look at
        found += [f"{process.name}: {one}" for one in (*links, *maps) if mark in one]
    return found
