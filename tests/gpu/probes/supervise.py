"""Running one probe in a process of its own, and ending it at its deadline."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from tests.gpu.probes.findings import Finding, Verdict, parse_line

ERROR_LINES_SHOWN: Final = 2
ERROR_LINES_PRINTED: Final = 60
_REAP_S: Final = 5.0
"""A process inside an uninterruptible driver call outlives SIGKILL; it is not waited for longer."""


def supervise(
    probe: str,
    command: Sequence[str],
    *,
    deadline_s: float,
    seen: Callable[[Finding], None],
) -> list[Finding]:
    """Run a probe's command, hand each finding to ``seen`` as it comes, and return all of them.

    The command leads a session of its own, so that at the deadline it ends together with whatever
    it started. A probe that hung, crashed or found nothing gets a finding that says so.
    """
    findings: list[Finding] = []

    def keep(finding: Finding) -> None:
        findings.append(finding)
        seen(finding)

    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        hung = threading.Event()

        def expire() -> None:
            hung.set()
            end_session(process.pid)

        timer = threading.Timer(deadline_s, expire)
        timer.start()
        assert process.stdout is not None
        try:
            # The pipe ends when every process that holds it is gone, or at the deadline.
            for line in process.stdout:
                finding = parse_line(line)
                if finding is not None:
                    keep(finding)
            code = _reap(process)
        finally:
            timer.cancel()
            end_session(process.pid)
            process.stdout.close()
        if hung.is_set():
            keep(_failed(probe, f"hung: killed after {deadline_s:.0f} s", len(findings)))
        elif code != 0 or not findings:
            errors.seek(0)
            lines = errors.read().strip().splitlines()
            tail = " / ".join(lines[-ERROR_LINES_SHOWN:])
            # The probe's own error often only says that a process it started failed before.
            print(*lines[-ERROR_LINES_PRINTED:], sep="\n", file=sys.stderr, flush=True)
            took_s = time.monotonic() - start
            reason = "did not end" if code is None else f"ended with code {code}"
            keep(_failed(probe, f"{reason} after {took_s:.1f} s: {tail}", len(findings)))
    return findings


def end_session(leader_pid: int) -> None:
    """Kill every process of a session whose leader this process started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader_pid, signal.SIGKILL)


def _reap(process: subprocess.Popen[str]) -> int | None:
    try:
        return process.wait(timeout=_REAP_S)
    except subprocess.TimeoutExpired:
        return None


def _failed(probe: str, seen: str, earlier_count: int) -> Finding:
    counts = {"findings_before": earlier_count}
    return Finding(probe=probe, seen=seen, counts=counts, rule="", verdict=Verdict.FAILED)
