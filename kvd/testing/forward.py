"""The forward of a replay: from the requests of a step to what is painted and checked in the arena.

All places come from the client's tables, as an engine's kernels would take them, so that a wrong
translation is found like a wrong page.
"""

from collections.abc import Container, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from kvd.errors import WorkloadError
from kvd.testing.painter import (
    Corruption,
    Flip,
    PageCheck,
    PaintJob,
    StateCheck,
    StateWrite,
    TokenWrite,
)
from kvd.testing.passes import StepWork
from kvd.testing.pattern import Indices
from kvd.units import ceil_div, floor_div
from kvd_proto.memory import BandPlan, Lifetime, StoragePlan
from kvd_proto.scalars import RequestId


class RaggedRows(Protocol):
    """Rows of unequal length: those of request ``i`` are ``values[indptr[i]:indptr[i + 1]]``."""

    @property
    def values(self) -> npt.NDArray[np.integer[Any]]:
        """Return all rows end to end."""
        ...

    @property
    def indptr(self) -> npt.NDArray[np.int32]:
        """Return where each row starts, and where the last ends."""
        ...


class TableSource(Protocol):
    """What a forward asks the client for."""

    @property
    def plan(self) -> StoragePlan:
        """Return where everything lies."""
        ...

    def write_slots(self, band: str, ids: Sequence[int]) -> RaggedRows:
        """Return where the tokens of the last take go."""
        ...

    def page_table(self, band: str, ids: Sequence[int]) -> RaggedRows:
        """Return the physical pages of requests, unbound ones as 0."""
        ...

    def state_slots(self, ids: Sequence[int]) -> Indices:
        """Return the physical state slots of requests."""
        ...


class ForwardBuilder:
    """Builds the paint job of each step; remembers what each live request has written.

    Invariants:
    - ``tokens`` of a request is what the forwards built so far write
    - the pages of a window that a coming slide may free were checked by the forward before it
    """

    def __init__(self, tables: TableSource, *, corruption: Corruption | None = None) -> None:
        """Begin with no requests; a corruption that waits for a move is planted from here."""
        plan = tables.plan
        self._tables = tables
        self._flips = None
        if corruption is not None and corruption.after_move:
            self._flips = _FlipsAfterMove(tables, corruption)
        self._token_bands = [band for band in plan.bands if band.lifetime is not Lifetime.STATE]
        self._state_band = next(
            (band for band in plan.bands if band.lifetime is Lifetime.STATE), None
        )
        self._page_tokens = plan.page_tokens
        self._tokens: dict[RequestId, int] = {}
        self._state_versions: dict[RequestId, int] = {}
        self._places_digest = xxhash.xxh3_64()
        self._useful_bytes_max = 0

    @property
    def places_digest(self) -> str:
        """Return a digest of all places granted so far: equal on all ranks of a stage."""
        return self._places_digest.hexdigest()

    @property
    def useful_bytes_max(self) -> int:
        """Return the most bytes of tokens and states that were written and still needed."""
        return self._useful_bytes_max

    def forget(self, requests: Sequence[RequestId]) -> None:
        """Drop requests that were freed."""
        for request in requests:
            del self._tokens[request]
            self._state_versions.pop(request, None)
        if self._flips is not None:
            self._flips.forget(requests)

    def build(self, work: StepWork) -> PaintJob:
        """Return what the forward of a step paints and checks, by the tables as they are now."""
        before = {request: self._tokens.get(request, 0) for request in work.requests}
        assert tuple(before.values()) == work.starts_tokens
        fresh = [request for request, tokens in before.items() if tokens == 0]
        for request, count in zip(work.requests, work.counts_tokens, strict=True):
            self._tokens[request] = before[request] + count
        requests, positions = _token_positions(work)
        token_writes = tuple(
            self._token_write(band, work, requests, positions) for band in self._token_bands
        )
        state_writes = self._state_writes(work, fresh)
        self._useful_bytes_max = max(self._useful_bytes_max, self._useful_bytes())
        whole = (*work.finished, *(one for one in work.sample if one not in work.finished))
        page_checks = [
            *self._sliding_checks([one for one in work.requests if one not in whole], before),
            *(check for band in self._token_bands for check in self._whole(band, whole, before)),
        ]
        return PaintJob(
            token_writes=token_writes,
            state_writes=state_writes,
            flips=() if self._flips is None else self._flips.next(self._tokens, state_writes),
            page_checks=tuple(page_checks),
            state_checks=self._state_checks(whole),
        )

    # ---- writes -----------------------------------------------------------------------------

    def _token_write(
        self, band: BandPlan, work: StepWork, requests: Indices, positions: Indices
    ) -> TokenWrite:
        rows = self._tables.write_slots(band.name, work.requests)
        lengths = tuple(np.diff(rows.indptr).tolist())
        if lengths != work.counts_tokens:
            raise WorkloadError(
                f"band {band.name}: the tables name places for {lengths} tokens of requests "
                f"{work.requests}, taken were {work.counts_tokens}"
            )
        places = rows.values.astype(np.int64)
        self._places_digest.update(places.tobytes())
        return TokenWrite(band=band.name, requests=requests, positions=positions, places=places)

    def _state_writes(self, work: StepWork, fresh: Sequence[RequestId]) -> tuple[StateWrite, ...]:
        """Rewrite the states of requests that entered a new page: every step would be too much."""
        if self._state_band is None:
            return ()
        versions = {
            request: floor_div(self._tokens[request], self._page_tokens)
            for request in work.requests
        }
        rewritten = [
            request
            for request, version in versions.items()
            if self._state_versions.get(request) != version
        ]
        if not rewritten:
            return ()
        self._state_versions.update({request: versions[request] for request in rewritten})
        slots = self._tables.state_slots(rewritten).astype(np.int64)
        self._places_digest.update(slots.tobytes())
        return (
            StateWrite(
                band=self._state_band.name,
                requests=np.array(rewritten, dtype=np.int64),
                versions=np.array([versions[request] for request in rewritten], dtype=np.int64),
                slots=slots,
                is_fresh=np.isin(rewritten, fresh),
            ),
        )

    # ---- checks -----------------------------------------------------------------------------

    def _sliding_checks(
        self, requests: Sequence[RequestId], before: dict[RequestId, int]
    ) -> list[PageCheck]:
        """Return checks of the window pages that the next slide may free."""
        checks: list[PageCheck] = []
        for band in self._token_bands:
            if band.lifetime is not Lifetime.WINDOW:
                continue
            spans = {
                request: (
                    self._first_bound_page(band, before[request]),
                    self._first_bound_page(band, self._tokens[request]),
                )
                for request in requests
            }
            sliding = [request for request, (start, end) in spans.items() if start < end]
            if not sliding:
                continue
            for request, pages in self._pages(band, sliding):
                start, end = spans[request]
                checks.append(
                    PageCheck(
                        band=band.name,
                        request_id=request,
                        first_page_index=start,
                        bound_page_index=start,
                        physical=pages[start:end],
                        written_tokens=self._tokens[request],
                    )
                )
        return checks

    def _whole(
        self, band: BandPlan, requests: Sequence[RequestId], before: dict[RequestId, int]
    ) -> list[PageCheck]:
        """Return checks of every page that requests hold in a band."""
        if not requests:
            return []
        return [
            PageCheck(
                band=band.name,
                request_id=request,
                first_page_index=0,
                bound_page_index=self._first_bound_page(
                    band, before.get(request, self._tokens[request])
                ),
                physical=pages,
                written_tokens=self._tokens[request],
            )
            for request, pages in self._pages(band, requests)
        ]

    def _state_checks(self, requests: Sequence[RequestId]) -> tuple[StateCheck, ...]:
        if self._state_band is None or not requests:
            return ()
        slots = self._tables.state_slots(requests).tolist()
        return tuple(
            StateCheck(self._state_band.name, request, slot, self._state_versions[request])
            for request, slot in zip(requests, slots, strict=True)
        )

    def _pages(
        self, band: BandPlan, requests: Sequence[RequestId]
    ) -> list[tuple[RequestId, Indices]]:
        """Return the pages of each request, one for every page of its tokens."""
        table = self._tables.page_table(band.name, requests)
        values, ends = table.values.astype(np.int64), table.indptr.tolist()
        found: list[tuple[RequestId, Indices]] = []
        for nth, request in enumerate(requests):
            pages = values[ends[nth] : ends[nth + 1]]
            expected = ceil_div(self._tokens[request], self._page_tokens)
            if pages.size != expected:
                raise WorkloadError(
                    f"band {band.name}: the tables name {pages.size} pages of request {request}, "
                    f"its {self._tokens[request]} tokens fill {expected}"
                )
            found.append((request, pages))
        return found

    def _first_bound_page(self, band: BandPlan, computed_tokens: int) -> int:
        """Return the first page that must be bound once so many tokens are computed.

        The next token looks at itself and the ``window_tokens - 1`` before it.
        """
        if band.lifetime is not Lifetime.WINDOW:
            return 0
        return floor_div(max(0, computed_tokens - band.window_tokens + 1), self._page_tokens)

    def _useful_bytes(self) -> int:
        tokens = np.fromiter(self._tokens.values(), dtype=np.int64, count=len(self._tokens))
        total = 0
        for band in self._token_bands:
            kept = tokens
            if band.lifetime is Lifetime.WINDOW:
                kept = np.minimum(tokens, band.window_tokens)
            total += int(kept.sum()) * band.entry_bytes
        if self._state_band is not None:
            total += len(self._tokens) * self._state_band.entry_bytes
        return total


class _FlipsAfterMove:
    """Watches one page or slot, and has a byte of it flipped once it moved."""

    def __init__(self, tables: TableSource, corruption: Corruption) -> None:
        self._tables = tables
        self._corruption = corruption
        self._band = next(
            (band for band in tables.plan.bands if band.name == corruption.band), None
        )
        self._unit_index = 0
        """Where it lies; 0 while it is not bound."""
        self._moved = False

    def forget(self, requests: Sequence[RequestId]) -> None:
        """Begin anew if the request is among those that ended."""
        if self._corruption.request_id in requests:
            self._unit_index, self._moved = 0, False

    def next(
        self, live: Container[RequestId], state_writes: Sequence[StateWrite]
    ) -> tuple[Flip, ...]:
        """Return what to flip in the forward that is being built."""
        request, band = self._corruption.request_id, self._band
        unit_index = self._now() if band is not None and request in live else 0
        if band is None or unit_index == 0:
            return ()
        moved_now = self._unit_index not in (0, unit_index) and not self._moved
        # A state that is written anew is whole again.
        undone = self._moved and any(request in write.requests for write in state_writes)
        is_state = band.lifetime is Lifetime.STATE
        self._unit_index = unit_index
        self._moved = self._moved or moved_now
        if not (moved_now or (is_state and undone)):
            return ()
        return (Flip(band.name, unit_index if is_state else unit_index * band.page_tokens),)

    def _now(self) -> int:
        """Return where the page or slot lies, 0 if it is not bound."""
        corruption = self._corruption
        assert self._band is not None
        if self._band.lifetime is Lifetime.STATE:
            return int(self._tables.state_slots([corruption.request_id])[0])
        pages = self._tables.page_table(self._band.name, [corruption.request_id]).values
        return int(pages[corruption.page_index]) if corruption.page_index < pages.size else 0


def _token_positions(work: StepWork) -> tuple[Indices, Indices]:
    """Return request and position of every token that a step writes."""
    counts = np.array(work.counts_tokens, dtype=np.int64)
    requests = np.repeat(np.array(work.requests, dtype=np.int64), counts)
    first = np.cumsum(counts) - counts
    within = np.arange(requests.size, dtype=np.int64) - np.repeat(first, counts)
    return requests, within + np.repeat(np.array(work.starts_tokens, dtype=np.int64), counts)
