"""What came of a replay: one verdict over the reports of all ranks, for people and for programs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvd.price.layout import Step
from kvd.testing.messages import RankReport
from kvd.testing.painter import Corruption
from kvd.testing.replay import ReplayOutcome
from kvd.testing.traces import Selection
from kvd_proto.outcomes import Verdict
from kvd_proto.scalars import RequestId

MISMATCHES_SHOWN_MAX: Final = 10
_GB: Final = 1_000_000_000
_MiB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BandMotion:
    """What of a band was moved."""

    name: str
    is_float: bool
    moved_units: int
    moved_bytes: int
    batches_count: int
    """Times that some of it was moved; for a float, how often it was relocated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMotion:
    """What the daemon did to make room, by its own count at the end."""

    layouts: Mapping[str, int]
    """Takes that found no hole, by how far the arena was rearranged for them."""
    bands: tuple[BandMotion, ...]
    retracted_count: int
    lapsed_count: int
    """Promises that ended before their requests."""

    @property
    def relief_count(self) -> int:
        """Return how many takes found room only because something moved."""
        return sum(count for name, count in self.layouts.items() if name != Step.NO_MOVE.value)

    @property
    def relocation_count(self) -> int:
        """Return how many times a band in the middle was moved."""
        return sum(band.batches_count for band in self.bands if band.is_float)

    @property
    def moved_units(self) -> int:
        """Return the pages and slots that were copied, for relief or while idle."""
        return sum(band.moved_units for band in self.bands)

    @property
    def moved_bytes(self) -> int:
        """Return their bytes, on each rank."""
        return sum(band.moved_bytes for band in self.bands)


NO_MOTION: Final = StageMotion(layouts={}, bands=(), retracted_count=0, lapsed_count=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The ranks' counts side by side, and everything that was not as it should be."""

    selection: Selection
    outcome: ReplayOutcome
    corruption: Corruption | None = None
    left_units: Mapping[str, int] | None = None
    """Units per band that were still live after the last request; None if nobody looked."""
    motion: StageMotion | None = None
    """What the daemon moved; None if nobody looked."""

    @property
    def scheduler(self) -> RankReport | None:
        """Return the report of the first rank that decided, if it got to its end."""
        return next((report for report in self.outcome.reports if report.is_scheduler), None)

    @property
    def mismatch_count(self) -> int:
        """Return the pages and slots, over all ranks, that did not hold what was written."""
        return sum(report.mismatch_count for report in self.outcome.reports)

    @property
    def findings(self) -> tuple[str, ...]:
        """Return what was wrong, a sentence each; empty if all went well."""
        return (
            *(problem.sentence for problem in self.outcome.problems),
            *self._mismatch_sentences(),
            *self._disagreements(),
            *self._leftovers(),
            *self._miscounted(),
            *self._unserved(),
        )

    def as_json(self) -> dict[str, object]:
        """Return the fields of the JSON document."""
        found, motion = self.scheduler, self.motion or NO_MOTION
        counts: dict[str, object] = {}
        if found is not None:
            counts = {
                "tokens": found.served_tokens,
                "tokens_written": found.written_tokens,
                "elapsed_s": found.elapsed_ms / 1e3,
                "iterations_per_s": _rate(found.pass_count, found),
                "tokens_per_s": _rate(found.served_tokens, found),
                "batch_p50_us": found.batch_p50_us,
                "batch_p99_us": found.batch_p99_us,
                "running_max": found.running_count_max,
                "waiting_iterations": found.waiting_pass_count,
                "idle_iterations": found.idle_pass_count,
                "waited": found.verdicts.get(Verdict.WAIT.name, 0),
                "takes_refused": found.refused_take_count,
                "retracted": found.retracted_count,
                "tokens_recomputed": found.recomputed_tokens,
                "clipped": found.clipped_count,
                "verdicts": found.verdicts,
                "unschedulable": list(found.unschedulable),
                "useful_bytes_peak": found.useful_bytes_max,
                "arena_bytes": found.arena_bytes,
                "position": found.position,
            }
        return {
            "trace": self.selection.trace.name,
            "rule": self.selection.rule,
            "requests": 0 if found is None else found.served_count,
            "iterations": 0 if found is None else found.pass_count,
            "refusals": {} if found is None else found.refusals,
            "relief": motion.relief_count,
            "layouts": dict(motion.layouts),
            "relocations": motion.relocation_count,
            "moved_units": {band.name: band.moved_units for band in motion.bands},
            "moved_bytes": motion.moved_bytes,
            "lapsed": motion.lapsed_count,
            "mismatches": self.mismatch_count,
            **counts,
            "bytes_written": sum(report.written_bytes for report in self.outcome.reports),
            "bytes_checked": sum(report.checked_bytes for report in self.outcome.reports),
            "units_checked": sum(report.checked_units for report in self.outcome.reports),
            "tables_checked": sum(report.tables_count for report in self.outcome.reports),
            "ranks": [
                {
                    "rank": report.rank_index,
                    "position": report.position,
                    "mismatches": report.mismatch_count,
                    "places_digest": report.places_digest,
                }
                for report in self.outcome.reports
            ],
            "left_units": self.left_units,
            "findings": list(self.findings),
            "ok": not self.findings,
        }

    def lines(self) -> list[str]:
        """Return the report as text."""
        found = self.scheduler
        if found is None:
            return ["no rank got to the end of the workload"]
        reports = self.outcome.reports
        seconds = found.elapsed_ms / 1e3
        useful_share = found.useful_bytes_max / found.arena_bytes
        checked_bytes = sum(report.checked_bytes for report in reports)
        written_bytes = sum(report.written_bytes for report in reports)
        rows = (
            (
                "requests served",
                f"{found.served_count:,} of {len(self.selection.requests):,}, "
                f"at most {found.running_count_max} at a time",
            ),
            (
                "tokens served",
                f"{found.served_tokens:,} in {seconds:.1f} s "
                f"({_rate(found.served_tokens, found):,.0f}/s)",
            ),
            (
                "iterations",
                f"{found.pass_count:,} ({_rate(found.pass_count, found):,.0f}/s)",
            ),
            (
                "batch round trip",
                f"p50 {found.batch_p50_us:,.0f} us, p99 {found.batch_p99_us:,.0f} us",
            ),
            (
                "peak useful bytes",
                f"{found.useful_bytes_max / _MiB:,.1f} MiB of an arena of "
                f"{found.arena_bytes / _MiB:,.1f} MiB per rank ({useful_share:.0%})",
            ),
            ("admission verdicts", _counted(found.verdicts)),
            ("refusals by reason", _counted(found.refusals)),
            (
                "bytes by all ranks",
                f"{written_bytes / _GB:,.1f} GB written, {checked_bytes / _GB:,.1f} GB compared "
                f"in {sum(report.checked_units for report in reports):,} pages and slots",
            ),
            *self._motion_rows(found),
            (
                "tables checked",
                f"{sum(report.tables_count for report in reports)} equal to the daemon's books",
            ),
            ("mismatches", f"{self.mismatch_count}"),
        )
        return [f"{name:<20}{text}" for name, text in rows]

    def _motion_rows(self, found: RankReport) -> list[tuple[str, str]]:
        """Return what was done to make room."""
        motion = self.motion or NO_MOTION
        layouts = _counted({name: count for name, count in motion.layouts.items() if count})
        moved = _counted({band.name: band.moved_units for band in motion.bands})
        return [
            ("relief", f"{motion.relief_count:,} (layouts: {layouts})"),
            (
                "moved per rank",
                f"{motion.moved_bytes / _MiB:,.1f} MiB (pages and slots: {moved}), "
                f"{motion.relocation_count:,} relocations of floating bands",
            ),
            (
                "oversubscription",
                f"{motion.lapsed_count:,} promises lapsed, {found.refused_take_count:,} takes "
                f"refused, {found.retracted_count:,} requests retracted with "
                f"{found.recomputed_tokens:,} tokens to compute again",
            ),
        ]

    def _mismatch_sentences(self) -> list[str]:
        # A page is compared again and again while its request lives: the same finding every time.
        found = Counter(
            mismatch for report in self.outcome.reports for mismatch in report.mismatches
        )
        sentences: list[str] = []
        told_count = 0
        for one, count in list(found.items())[:MISMATCHES_SHOWN_MAX]:
            often = f", found {count} times" if count > 1 else ""
            sentences.append(f"mismatch: {one.sentence} [{self._origin(one.request_id)}]{often}")
            told_count += count
        if self.mismatch_count > told_count:
            sentences.append(f"{self.mismatch_count - told_count} further mismatches")
        return sentences

    def _disagreements(self) -> list[str]:
        """Return how ranks differ that must not: they read the same log."""
        agreed = {(report.position, report.places_digest) for report in self.outcome.reports}
        if len(agreed) <= 1:
            return []
        each = ", ".join(
            f"rank {report.rank_index} at position {report.position} with places "
            f"{report.places_digest}"
            for report in self.outcome.reports
        )
        return [f"ranks that follow one log differ: {each}"]

    def _leftovers(self) -> list[str]:
        return [
            f"{units} units of band {band} are still live after the last request was freed"
            for band, units in (self.left_units or {}).items()
            if units
        ]

    def _miscounted(self) -> list[str]:
        found = self.scheduler
        if found is None or self.motion is None:
            return []
        if found.retracted_count == self.motion.retracted_count:
            return []
        return [
            f"{found.retracted_count} requests were told that they are retracted, the daemon "
            f"counts {self.motion.retracted_count}"
        ]

    def _unserved(self) -> list[str]:
        sentences: list[str] = []
        found = self.scheduler
        planted = any(report.corrupted_count for report in self.outcome.reports)
        if self.corruption is not None and found is not None and not planted:
            never = "moved" if self.corruption.after_move else "written"
            sentences.append(
                f"page {self.corruption.page_index} of request {self.corruption.request_id} in "
                f"band {self.corruption.band} was to be corrupted and was never {never}"
            )
        if found is not None and found.served_count == 0:
            sentences.append("no request was served")
        return sentences

    def _origin(self, request_id: RequestId) -> str:
        """Return where a request stands in its trace; ids count the selection from 1."""
        line_index = self.selection.requests[request_id - 1].line_index
        return f"line {line_index} of {self.selection.trace.name}"


def _rate(count: int, report: RankReport) -> float:
    return count / max(report.elapsed_ms / 1e3, 1e-9)


def _counted(counts: Mapping[str, int]) -> str:
    names: Sequence[str] = sorted(counts, key=lambda name: (-counts[name], name))
    return ", ".join(f"{name} {counts[name]:,}" for name in names) or "none"
