"""The forward of a modelled rank: reads its tables, then its pages, and writes its tokens.

Each forward is two actions. The first reads the tables in memory, when it runs; behind it the
forward declares that it is done with them. The second reads every page that the tables named,
compares all of it with what their owners wrote, and writes the step's tokens where the host
resolved them at launch. What an action finds wrong is kept; nothing is raised for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from kvd.testing.forward import ForwardBuilder, TableSource
from kvd.testing.modelled.device import ModelledWork
from kvd.testing.modelled.memory import ModelledMemory
from kvd.testing.modelled.shadow import Accesses, Extent
from kvd.testing.modelled.tables import DeviceTables, Indices, Lookup, Translation
from kvd.testing.painter import ArenaPainter, PageCheck, PaintJob, StateCheck
from kvd.testing.passes import StepWork
from kvd_proto.memory import BandPlan, Lifetime
from kvd_proto.scalars import RequestId

FINDINGS_KEPT_MAX: Final = 100
"""Findings kept in full; all are counted."""


class RankTables(TableSource, Protocol):
    """What a forward asks the client for."""

    def rows(self, ids: Sequence[int]) -> Indices:
        """Return the row of each request."""
        ...

    def lengths(self, ids: Sequence[int]) -> Indices:
        """Return the tokens that each request has taken."""
        ...


class OpenStep(Protocol):
    """A launch that takes work."""

    @property
    def number(self) -> int:
        """Return the number of the step."""
        ...

    def submit(self, work: Callable[[], None]) -> None:
        """Enqueue work of the forward."""
        ...

    def reads_done(self) -> None:
        """Declare that the tables are read."""
        ...


class ModelledForward:
    """Forwards of one rank; remembers what each request wrote, and what was found wrong."""

    def __init__(self, tables: RankTables, memory: ModelledMemory, *, rank_index: int) -> None:
        plan = tables.plan
        self._plan = plan
        self._tables = tables
        self._memory = memory
        self._rank_index = rank_index
        self._device_tables = DeviceTables(plan, memory)
        self._builder = ForwardBuilder(tables)
        self._painter = ArenaPainter(plan, memory.bytes[: plan.arena_bytes], rank_index=rank_index)
        self._bands = {band.name: band for band in plan.bands}
        self._state_band = next(
            (band.name for band in plan.bands if band.lifetime is Lifetime.STATE), None
        )
        self._findings: list[str] = []
        self._finding_count = 0

    @property
    def findings(self) -> tuple[str, ...]:
        """Return what the forwards that ran found wrong, in full up to a bound."""
        painted = tuple(found.sentence for found in self._painter.statistics().mismatches)
        return (*self._findings, *painted)

    @property
    def finding_count(self) -> int:
        """Return how much was wrong."""
        return self._finding_count + self._painter.statistics().mismatch_count

    @property
    def checked_units(self) -> int:
        """Return how many pages and slots were compared so far."""
        return self._painter.statistics().checked_units

    @property
    def places_digest(self) -> str:
        """Return a digest of all places granted so far: equal on all ranks of a stage."""
        return self._builder.places_digest

    def forget(self, requests: Sequence[RequestId]) -> None:
        """Drop requests that were freed."""
        self._builder.forget(requests)

    def launch(self, step: OpenStep, work: StepWork) -> None:
        """Enqueue a step's forward inside its launch block, by the tables as of the launch.

        Requests in ``work.finished`` and ``work.sample`` are compared wholly.
        """
        job = self._builder.build(work)
        requests = tuple(dict.fromkeys((*work.requests, *work.finished, *work.sample)))
        lookup = Lookup(
            rows=np.asarray(self._tables.rows(requests), dtype=np.int64).copy(),
            lengths_tokens=np.asarray(self._tables.lengths(requests), dtype=np.int64).copy(),
        )
        forward = _Forward(self, step.number, requests, job, lookup, self._resolved(requests))
        step.submit(ModelledWork(f"forward of step {step.number}: tables", forward.read_tables))
        step.reads_done()
        step.submit(ModelledWork(f"forward of step {step.number}: pages", forward.run))

    def _resolved(self, requests: Sequence[RequestId]) -> dict[str, list[list[int]]]:
        """Return the pages of each request and band as the host has them at launch."""
        resolved: dict[str, list[list[int]]] = {}
        for band in self._plan.bands:
            if band.lifetime is Lifetime.STATE:
                slots = self._tables.state_slots(requests).tolist()
                resolved[band.name] = [[slot] for slot in slots]
                continue
            table = self._tables.page_table(band.name, requests)
            ends = table.indptr.tolist()
            values = table.values.tolist()
            resolved[band.name] = [values[start:end] for start, end in pairwise(ends)]
        return resolved

    # ---- when they run ----------------------------------------------------------------------

    def translate(self, lookup: Lookup) -> Translation:
        """Return what the tables in memory say now."""
        return self._device_tables.translate(lookup)

    def paint(self, job: PaintJob) -> Accesses:
        """Carry out a job and return what it touched."""
        self._painter.run(job)
        writes: list[Extent] = []
        reads: list[Extent] = []
        for token_write in job.token_writes:
            writes.append(self._entries(self._bands[token_write.band], token_write.places))
        for state_write in job.state_writes:
            writes.append(self._entries(self._bands[state_write.band], state_write.slots))
        for check in job.page_checks:
            band = self._bands[check.band]
            # The painter says so of others, and reads nothing there.
            inside = (check.physical > 0) & (check.physical < band.unit_index_end_count)
            starts = check.physical[inside] * band.unit_bytes
            reads.append(self._memory.extent(starts, band.unit_bytes))
        for state_check in job.state_checks:
            slots = np.array([state_check.slot_index], dtype=np.int64)
            reads.append(self._entries(self._bands[state_check.band], slots))
        return Accesses(reads, writes)

    def report(self, step: int, finding: str) -> None:
        """Keep something that is wrong."""
        self._finding_count += 1
        if len(self._findings) < FINDINGS_KEPT_MAX:
            self._findings.append(f"rank {self._rank_index}, step {step}: {finding}")

    @property
    def state_band(self) -> str | None:
        """Return the name of the state band, or None."""
        return self._state_band

    def _entries(self, band: BandPlan, places: Indices) -> Extent:
        return self._memory.extent(places * band.entry_bytes, band.entry_bytes)


class _Forward:
    """One forward between its launch and its end."""

    def __init__(
        self,
        rank: ModelledForward,
        step: int,
        requests: Sequence[RequestId],
        job: PaintJob,
        lookup: Lookup,
        resolved: dict[str, list[list[int]]],
    ) -> None:
        self._rank = rank
        self._step = step
        self._place = {request: place for place, request in enumerate(requests)}
        self._requests = requests
        self._job = job
        self._lookup = lookup
        self._resolved = resolved
        self._translation: Translation | None = None

    def read_tables(self) -> Accesses:
        """Read the tables, and compare them with what the host resolved."""
        translation = self._rank.translate(self._lookup)
        self._translation = translation
        for finding in translation.findings:
            self._rank.report(self._step, finding)
        for band, of_requests in self._resolved.items():
            for place, host in enumerate(of_requests):
                if band == self._rank.state_band:
                    device = [int(translation.slots[place])]
                else:
                    device = translation.pages[band][place].tolist()
                if device != host:
                    self._rank.report(
                        self._step,
                        f"request {self._requests[place]}, band {band}: the tables in memory "
                        f"name {device}, the host resolved {host}",
                    )
        return translation.reads

    def run(self) -> Accesses:
        """Read what the tables named, and write what the host resolved."""
        translation = self._translation
        assert translation is not None, "the tables were read before, in the same stream"
        return self._rank.paint(
            replace(
                self._job,
                page_checks=tuple(
                    self._as_read(check, translation) for check in self._job.page_checks
                ),
                state_checks=tuple(
                    self._slot_as_read(check, translation) for check in self._job.state_checks
                ),
            )
        )

    def _as_read(self, check: PageCheck, translation: Translation) -> PageCheck:
        pages = translation.pages[check.band][self._place[check.request_id]]
        start = check.first_page_index
        return replace(check, physical=pages[start : start + check.physical.size])

    def _slot_as_read(self, check: StateCheck, translation: Translation) -> StateCheck:
        return replace(check, slot_index=int(translation.slots[self._place[check.request_id]]))
