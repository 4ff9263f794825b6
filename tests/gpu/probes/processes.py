"""Pages shared between a probe and the processes it starts, and watching those processes die."""

import ctypes
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvd_client.device.fences import PAGE_BYTES, create_fence_page

WORD_BYTES: Final = 8
LANE_WORDS: Final = 16
"""A lane's 128 bytes in words; the words that probes use lie in lanes of their own."""

Arguments = dict[str, Any]


class Page:
    """A page of shared words, fresh or from a descriptor, seen by host and GPU."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = create_fence_page("probe") if descriptor is None else descriptor
        self._mapping = mmap.mmap(self.descriptor, PAGE_BYTES)
        self._words = memoryview(self._mapping).cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    def __getitem__(self, word_index: int) -> int:
        return self._words[word_index]

    def __setitem__(self, word_index: int, value: int) -> None:
        self._words[word_index] = value

    def wait(self, word_index: int, value: int, *, deadline_s: float = 20.0) -> None:
        """Return once a word is at least ``value``; raises TimeoutError."""
        wait_until(
            lambda: self[word_index] >= value,
            deadline_s=deadline_s,
            what=f"word {word_index} to reach {value}",
        )


def pause(seconds: float) -> None:
    """Let time pass: what is waited for here is that nothing happens."""
    select.select([], [], [], seconds)


def wait_until(condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
    """Poll until a condition holds; raises TimeoutError that says what was waited for."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {deadline_s:g} s for {what}")
        pause(0.0002)


def start_role(
    role: str, arguments: Arguments, descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start ``module:function`` of this package in a process that inherits the descriptors.

    What it prints goes to this process's standard error, because standard output is for findings.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.probes", "--role", role, json.dumps(arguments)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=tuple(descriptors),
    )


def wait_ready(
    process: subprocess.Popen[bytes], page: Page, word_index: int, *, deadline_s: float = 30.0
) -> None:
    """Wait until a role has stored its first number; raises RuntimeError if it ends before."""
    wait_until(
        lambda: page[word_index] > 0 or process.poll() is not None,
        deadline_s=deadline_s,
        what=f"process {process.pid} to get ready",
    )
    if process.poll() is not None and page[word_index] == 0:
        raise RuntimeError(f"a role ended with code {process.returncode} before it was ready")


def expect_end(process: subprocess.Popen[bytes], *, deadline_s: float) -> None:
    """Wait for a role that ends by itself; raises RuntimeError unless it ended well."""
    code = process.wait(timeout=deadline_s)
    if code != 0:
        raise RuntimeError(f"a role ended with code {code}")


@dataclass(frozen=True, slots=True)
class Death:
    """When what happened after a SIGKILL, in milliseconds; None: not before watching ended."""

    pidfd_ms: float | None
    last_write_ms: tuple[float, ...]
    at_kill: tuple[int, ...]
    at_pidfd: tuple[int, ...]
    at_end: tuple[int, ...]

    @property
    def wrote_after_pidfd(self) -> bool:
        """Return whether any watched word changed after the pidfd had become readable."""
        return self.pidfd_ms is not None and self.at_pidfd != self.at_end


def kill_and_watch(
    pid: int, page: Page, word_indexes: Sequence[int], *, settle_s: float, limit_s: float
) -> Death:
    """Kill a process and follow its words until they and its pidfd are still.

    Watching ends ``settle_s`` after the later of the pidfd and the last write, at the latest after
    ``limit_s``. The caller reaps the process.
    """
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    start = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    at_kill = tuple(page[index] for index in word_indexes)
    words, at_pidfd = list(at_kill), at_kill
    written_s = [0.0] * len(words)
    pidfd_s: float | None = None
    while True:
        for place, index in enumerate(word_indexes):
            value = page[index]
            if value != words[place]:
                words[place] = value
                written_s[place] = time.perf_counter() - start
        now_s = time.perf_counter() - start
        # Asked each time, because asking lets the threads of this process run.
        if poll.poll(0) and pidfd_s is None:
            # Read again: what came between the reads above and the pidfd was before it.
            pidfd_s, at_pidfd = now_s, tuple(page[index] for index in word_indexes)
        still = pidfd_s is not None and now_s > max(pidfd_s, *written_s) + settle_s
        if still or now_s > limit_s:
            break
    os.close(pidfd)
    return Death(
        pidfd_ms=None if pidfd_s is None else pidfd_s * 1e3,
        last_write_ms=tuple(second * 1e3 for second in written_s),
        at_kill=at_kill,
        at_pidfd=at_pidfd,
        at_end=tuple(words),
    )
