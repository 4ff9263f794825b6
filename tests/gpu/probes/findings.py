"""What a probe found, and how that is printed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

SCHEMA: Final = "kvd.probes/1"
LINE_MARK: Final = "finding "
"""Heads the lines of a child's standard output that carry a finding; other lines are ignored."""

Count = int | float | str


class Verdict(StrEnum):
    """What a finding means for the rule it speaks about."""

    CONFIRMS = "confirms"
    CONTRADICTS = "contradicts"
    INFORMS = "informs"
    NOT_RUN = "not run"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of one probe.

    ``counts`` holds the figures behind ``seen``; the unit is the end of each name. ``rule`` is the
    rule of the design that the finding supports or would change.
    """

    probe: str
    seen: str
    counts: Mapping[str, Count]
    rule: str
    verdict: Verdict

    def to_line(self) -> str:
        """Return the line by which a probe's process reports this finding."""
        return LINE_MARK + json.dumps(asdict(self))

    def to_text(self) -> str:
        """Return the line that a person reads."""
        figures = render_counts(self.counts)
        return f"[{self.probe}] {self.verdict}: {self.seen}" + (f" ({figures})" if figures else "")


def parse_line(line: str) -> Finding | None:
    """Return the finding in a line of a probe's output, None if it carries none.

    Raises ValueError or KeyError for a line that has the mark but no finding behind it.
    """
    if not line.startswith(LINE_MARK):
        return None
    fields: dict[str, Any] = json.loads(line[len(LINE_MARK) :])
    return Finding(
        probe=fields["probe"],
        seen=fields["seen"],
        counts=fields["counts"],
        rule=fields["rule"],
        verdict=Verdict(fields["verdict"]),
    )


def report(finding: Finding) -> None:
    """Print a finding for the supervisor, at once: the process may be killed next."""
    print(finding.to_line(), flush=True)


def render_counts(counts: Mapping[str, Count]) -> str:
    """Return counts in one line, floats with as many digits as they are worth."""
    parts: list[str] = []
    for name, value in counts.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        parts.append(f"{name} {shown}")
    return ", ".join(parts)


def render_table(findings: Iterable[Finding]) -> str:
    """Return the findings as a Markdown table."""
    lines = ["| probe | seen | counts | rule | verdict |", "| --- | --- | --- | --- | --- |"]
    for finding in findings:
        cells = (
            finding.probe,
            finding.seen,
            render_counts(finding.counts),
            finding.rule,
            str(finding.verdict),
        )
        lines.append("| " + " | ".join(_cell(text) for text in cells) + " |")
    return "\n".join(lines)


def render_json(findings: Sequence[Finding], machine: Mapping[str, str]) -> str:
    """Return the findings under a schema name, with what describes the machine."""
    content = {
        "schema": SCHEMA,
        "machine": dict(machine),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(content, indent=2)


def verdict_of(complete: bool, sound: bool) -> Verdict:
    """Return the verdict on a rule that was seen kept; half of an observation confirms nothing."""
    if not sound:
        return Verdict.CONTRADICTS
    return Verdict.CONFIRMS if complete else Verdict.INFORMS


def spread(name: str, values_ms: Sequence[float]) -> dict[str, Count]:
    """Return smallest, middle and greatest of times in milliseconds as counts."""
    if not values_ms:
        return {f"{name}_samples": 0}
    ordered = sorted(values_ms)
    return {
        f"{name}_min_ms": round(ordered[0], 3),
        f"{name}_p50_ms": round(ordered[len(ordered) // 2], 3),
        f"{name}_max_ms": round(ordered[-1], 3),
    }


def _cell(text: str) -> str:
    """Keep a text from ending its cell or its row."""
    return text.replace("|", "\\|").replace("\n", " ")
