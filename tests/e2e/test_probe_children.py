"""Children of the GPU probes, without a GPU: kept findings, deadlines, and following a death."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.probes.findings import Finding, Verdict
from tests.gpu.probes.processes import Page, kill_and_watch, wait_until
from tests.gpu.probes.supervise import supervise

FINDING = Finding(
    probe="capture", seen="it was so", counts={"kills": 3}, rule="", verdict=Verdict.CONFIRMS
)


def run_child(program: str, *, deadline_s: float = 20.0) -> tuple[list[Finding], list[Finding]]:
    seen: list[Finding] = []
    found = supervise(
        "capture", [sys.executable, "-c", program], deadline_s=deadline_s, seen=seen.append
    )
    return found, seen


def printing(finding: Finding) -> str:
    return f"print({finding.to_line()!r}, flush=True)"


def test_findings_are_handed_on_as_they_come() -> None:
    found, seen = run_child(printing(FINDING) + "; print('something else')")
    assert found == [FINDING]
    assert seen == [FINDING]


def test_a_child_that_crashes_keeps_its_findings_and_gets_one_that_says_so() -> None:
    found, seen = run_child(printing(FINDING) + "; raise RuntimeError('no such device')")
    assert found[0] == FINDING
    assert found[1].verdict is Verdict.FAILED
    assert "ended with code 1" in found[1].seen
    assert "no such device" in found[1].seen
    assert seen == found


def test_a_child_that_finds_nothing_has_failed() -> None:
    (finding,), _ = run_child("pass")
    assert finding.verdict is Verdict.FAILED
    assert "ended with code 0" in finding.seen


@pytest.mark.slow
def test_a_hung_child_is_killed_with_what_it_started() -> None:
    grandchild = "import os, subprocess, sys, threading\n" + (
        "process = subprocess.Popen([sys.executable, '-c', 'import threading;"
        " threading.Event().wait()'])\n"
    )
    finding = "Finding('capture', str(process.pid), {}, '', Verdict.INFORMS)"
    imports = "from tests.gpu.probes.findings import Finding, Verdict, report\n"
    program = grandchild + imports + f"report({finding})\nthreading.Event().wait()"
    found, _ = run_child(program, deadline_s=3.0)
    assert [item.verdict for item in found] == [Verdict.INFORMS, Verdict.FAILED]
    assert found[1].seen == "hung: killed after 3 s"
    assert found[1].counts == {"findings_before": 1}
    status = Path(f"/proc/{found[0].seen}/stat")
    wait_until(
        lambda: not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z",
        deadline_s=5,
        what="the grandchild to end",
    )


def test_a_killed_process_is_followed_to_its_last_write() -> None:
    page = Page()
    program = (
        "import sys\nfrom tests.gpu.probes.processes import Page\n"
        "page = Page(int(sys.argv[1]))\nwhile True: page[16] = page[16] + 1"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(page.descriptor)], pass_fds=(page.descriptor,)
    )
    page.wait(16, 1)
    death = kill_and_watch(process.pid, page, (16,), settle_s=0.02, limit_s=10)
    process.wait()
    os.close(page.descriptor)
    assert death.pidfd_ms is not None
    assert not death.wrote_after_pidfd
    assert death.at_end == death.at_pidfd == (page[16],)
