"""The command: ``python -m tests.gpu.probes [--only NAME ...] [--json] [--gpu N] [--budget-s S]``.

Exits 0 when every probe ran to its end, whatever it found, and 1 when one hung, crashed or was left
out for lack of time.
"""

import argparse
import importlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.gpu.probes.findings import Finding, Verdict, render_json, render_table
from tests.gpu.probes.supervise import supervise

PACKAGE: Final = "tests.gpu.probes"
BUDGET_S: Final = 235.0
"""All probes together, so that the command ends within four minutes."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe: the function that runs it, and how long it may take."""

    name: str
    entry: str
    deadline_s: float
    asks: str


PROBES: Final = (
    Probe("capture", "pages:run_capture", 15, "is a stream write accepted by a graph capture"),
    Probe("register", "pages:run_register", 30, "may two processes register one page at once"),
    Probe("store", "pages:run_store", 40, "does a plain store release a stream wait"),
    Probe("progress", "progress:run", 80, "does the progress word keep up with the moves"),
    Probe("tearing", "tearing:run", 50, "are two words of one store ever seen apart"),
    Probe("death", "death:run", 60, "how long does a killed process write"),
    Probe("listing", "listing:run", 60, "does NVML know when a context is gone"),
    Probe("arena", "arena:run", 60, "how long does an arena over 100 GiB take to map"),
    Probe("two_gpus", "two_gpus:run", 60, "do order and death hold between two GPUs"),
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line; argparse ends the process for a wrong one."""
    names = [probe.name for probe in PROBES]
    parser = argparse.ArgumentParser(
        prog=f"python -m {PACKAGE}",
        description="Ask the GPU driver the questions that fences, segments and arenas rest on.",
        epilog="\n".join(f"{probe.name:10} {probe.asks}" for probe in PROBES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help="a probe; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--gpu", type=int, default=0, help="CUDA's ordinal of the GPU (default 0)")
    parser.add_argument(
        "--budget-s", type=float, default=BUDGET_S, help="seconds for all (default %(default)g)"
    )
    parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def call(entry: str, argument: Any) -> None:
    """Call ``module:function`` of this package."""
    module, _, function = entry.partition(":")
    getattr(importlib.import_module(f"{PACKAGE}.{module}"), function)(argument)


def describe_machine() -> dict[str, str]:
    """Return what the figures depend on, as far as it can be told without a context."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        gpus = "; ".join(answer.stdout.strip().splitlines())
    except (OSError, subprocess.SubprocessError) as error:
        gpus = f"unknown: {error}"
    return {"gpus": gpus, "kernel": platform.release(), "python": platform.python_version()}


def run_all(chosen: Sequence[Probe], gpu: int, budget_s: float, *, quiet: bool) -> list[Finding]:
    """Run probes one after the other, each within its deadline and what is left of the budget."""
    end = time.monotonic() + budget_s
    findings: list[Finding] = []

    def show(finding: Finding) -> None:
        if not quiet:
            print(finding.to_text(), flush=True)

    for probe in chosen:
        left_s = end - time.monotonic()
        if left_s < 1:
            finding = Finding(
                probe=probe.name,
                seen=f"left out: the budget of {budget_s:g} s was used up",
                counts={},
                rule="",
                verdict=Verdict.FAILED,
            )
            findings.append(finding)
            show(finding)
            continue
        findings += supervise(
            probe.name,
            [sys.executable, "-m", PACKAGE, "--child", probe.name, "--gpu", str(gpu)],
            deadline_s=min(probe.deadline_s, left_s),
            seen=show,
        )
    return findings


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    options = parse(arguments)
    if options.role:
        role, content = options.role
        call(role, json.loads(content))
        return 0
    if options.child:
        (probe,) = (item for item in PROBES if item.name == options.child)
        call(probe.entry, options.gpu)
        return 0
    chosen = [item for item in PROBES if not options.only or item.name in options.only]
    machine = describe_machine()
    findings = run_all(chosen, options.gpu, options.budget_s, quiet=options.json)
    if options.json:
        print(render_json(findings, machine))
    else:
        print()
        print(", ".join(f"{name} {value}" for name, value in machine.items()))
        print()
        print(render_table(findings))
    return int(any(finding.verdict is Verdict.FAILED for finding in findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
