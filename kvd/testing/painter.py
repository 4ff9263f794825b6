"""Paints granted pages and slots with patterns, and finds every byte that is not as painted.

A `PaintJob` is everything one forward does: writes first, then a planted corruption if one is asked
for, then checks. `ArenaPainter.run` is what the forward stream executes, so writes and checks are
ordered with the allocator's zeroing and moving exactly as kernels would be.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kvd.errors import WorkloadError
from kvd.testing.pattern import (
    Indices,
    PatternOwner,
    Words,
    entry_view,
    narrowed,
    state_words,
    token_words,
)
from kvd_proto.memory import StoragePlan
from kvd_proto.scalars import RequestId

MISMATCHES_KEPT_MAX: Final = 20
"""Mismatches described in full; all are counted."""
LOOK_TOKENS: Final = 64
"""Tokens compared at a time: their bytes still fit a core's cache."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A page or slot that does not hold what its request wrote; page 0 is a request's first."""

    request_id: RequestId
    band: str
    page_index: int
    physical_index: int
    rank_index: int
    finding: str

    @property
    def sentence(self) -> str:
        """Return it as one line."""
        return (
            f"request {self.request_id}, band {self.band}, page {self.page_index} "
            f"(physical {self.physical_index}) on rank {self.rank_index}: {self.finding}"
        )


@dataclass(frozen=True, slots=True)
class Corruption:
    """A byte that the painter flips on purpose, right after it was written.

    With ``after_move`` it does so where the page or slot lies once the allocator moved it.
    """

    request_id: RequestId
    band: str
    page_index: int
    after_move: bool = False


@dataclass(frozen=True, slots=True)
class TokenWrite:
    """Tokens to write in one band: where each goes and whose it is; arrays of equal length."""

    band: str
    requests: Indices
    positions: Indices
    places: Indices


@dataclass(frozen=True, slots=True)
class StateWrite:
    """States to write: a slot for each request; a fresh slot must read zero before its first."""

    band: str
    requests: Indices
    versions: Indices
    slots: Indices
    is_fresh: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PageCheck:
    """Consecutive pages of one request, to be compared byte by byte.

    ``physical`` are the pages from ``first_page_index`` on; those before ``bound_page_index`` may
    be unbound, the others must not be.
    """

    band: str
    request_id: RequestId
    first_page_index: int
    bound_page_index: int
    physical: Indices
    written_tokens: int


@dataclass(frozen=True, slots=True)
class StateCheck:
    """The state slot of one request, to be compared byte by byte."""

    band: str
    request_id: RequestId
    slot_index: int
    version_index: int


@dataclass(frozen=True, slots=True)
class Flip:
    """An entry of a band, a token or a slot, of which one byte is to be flipped."""

    band: str
    entry_index: int


@dataclass(frozen=True, slots=True)
class PaintJob:
    """What one forward does, in this order."""

    token_writes: tuple[TokenWrite, ...] = ()
    state_writes: tuple[StateWrite, ...] = ()
    flips: tuple[Flip, ...] = ()
    page_checks: tuple[PageCheck, ...] = ()
    state_checks: tuple[StateCheck, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PaintStatistics:
    """What was written and checked so far, and what was found."""

    written_bytes: int
    checked_bytes: int
    checked_units: int
    corrupted_count: int
    mismatch_count: int
    mismatches: tuple[Mismatch, ...]
    """The first of them, in full."""


class ArenaPainter:
    """Writes and checks patterns in one rank's arena; used by one stream at a time."""

    def __init__(
        self,
        plan: StoragePlan,
        arena: npt.NDArray[np.uint8],
        *,
        rank_index: int,
        corruption: Corruption | None = None,
    ) -> None:
        assert arena.size == plan.arena_bytes
        if corruption is not None and corruption.band not in {band.name for band in plan.bands}:
            raise WorkloadError(
                f"there is no band {corruption.band!r} to corrupt, only "
                f"{', '.join(band.name for band in plan.bands)}"
            )
        self._rank_index = rank_index
        # One that waits for a move comes as a flip of some later job.
        self._corruption = None if corruption is None or corruption.after_move else corruption
        self._bands = {band.name: band for band in plan.bands}
        self._owners = {
            band.name: PatternOwner(index, plan.stage_index, rank_index)
            for index, band in enumerate(plan.bands)
        }
        self._views = {
            band.name: entry_view(arena, entry_bytes=band.entry_bytes) for band in plan.bands
        }
        self._written_bytes = 0
        self._checked_bytes = 0
        self._checked_units = 0
        self._corrupted_count = 0
        self._mismatch_count = 0
        self._mismatches: list[Mismatch] = []

    def statistics(self) -> PaintStatistics:
        """Return the counts; call it when no job runs."""
        return PaintStatistics(
            written_bytes=self._written_bytes,
            checked_bytes=self._checked_bytes,
            checked_units=self._checked_units,
            corrupted_count=self._corrupted_count,
            mismatch_count=self._mismatch_count,
            mismatches=tuple(self._mismatches),
        )

    def run(self, job: PaintJob) -> None:
        """Do all of a job; what is wrong is counted and kept, nothing is raised for it."""
        for write in job.token_writes:
            self._write_tokens(write)
        for state_write in job.state_writes:
            self._write_states(state_write)
        for flip in job.flips:
            self._corrupt(self._views[flip.band], np.array([flip.entry_index], dtype=np.int64))
        for check in job.page_checks:
            self._check_pages(check)
        for state_check in job.state_checks:
            self._check_state(state_check)

    # ---- writing ----------------------------------------------------------------------------

    def _write_tokens(self, write: TokenWrite) -> None:
        band = self._bands[write.band]
        view = self._views[write.band]
        words = token_words(
            self._owners[write.band],
            write.requests,
            write.positions,
            page_tokens=band.page_tokens,
        )
        view[write.places] = narrowed(words, view)[:, None]
        self._written_bytes += write.places.size * band.entry_bytes
        corruption = self._corruption
        if corruption is not None and corruption.band == write.band:
            # The page's first token: written once, and never again.
            hit = (write.requests == corruption.request_id) & (
                write.positions == corruption.page_index * band.page_tokens
            )
            self._corrupt(view, write.places[hit])

    def _write_states(self, write: StateWrite) -> None:
        view = self._views[write.band]
        for request_id, slot in zip(
            write.requests[write.is_fresh].tolist(),
            write.slots[write.is_fresh].tolist(),
            strict=True,
        ):
            if view[slot].any():
                self._report(
                    write.band, RequestId(request_id), 0, slot, "a new slot does not read zero"
                )
        words = state_words(self._owners[write.band], write.requests, write.versions)
        for slot, word in zip(write.slots.tolist(), narrowed(words, view), strict=True):
            view[slot] = word
        self._written_bytes += write.slots.size * self._bands[write.band].entry_bytes
        corruption = self._corruption
        if corruption is not None and corruption.band == write.band:
            # Every rewrite would undo the flip, so each is followed by one.
            self._corrupt(view, write.slots[write.requests == corruption.request_id])

    def _corrupt(self, view: Words, places: Indices) -> None:
        for place in places.tolist():
            view[place, view.shape[1] // 2] ^= view.dtype.type(0x40)
            self._corrupted_count += 1

    # ---- checking ---------------------------------------------------------------------------

    def _check_pages(self, check: PageCheck) -> None:
        band = self._bands[check.band]
        view = self._views[check.band]
        page_tokens = band.page_tokens
        page_indices = check.first_page_index + np.arange(check.physical.size, dtype=np.int64)
        is_inside = (check.physical > 0) & (check.physical < band.unit_index_end_count)
        must_be_bound = page_indices >= check.bound_page_index
        # Page 0 is where unbound ids lead: right for pages that a window left behind.
        for nth in (~is_inside & (must_be_bound | (check.physical != 0))).nonzero()[0].tolist():
            self._report_unbound(check, int(page_indices[nth]), int(check.physical[nth]))
        page_indices, physical = page_indices[is_inside], check.physical[is_inside]
        pages_per_look = max(1, LOOK_TOKENS // page_tokens)
        for start in range(0, physical.size, pages_per_look):
            some = slice(start, start + pages_per_look)
            expected = self._expected_words(check, page_indices[some])
            places = _token_places(physical[some], page_tokens)
            # A single page is a run of rows: no copy.
            rows = view[places[0] : places[-1] + 1] if places.size == page_tokens else view[places]
            differs = rows != expected[:, None]
            if differs.any():
                self._report_rows(check, page_indices[some], physical[some], differs, rows)
        self._checked_units += physical.size
        self._checked_bytes += physical.size * band.unit_bytes

    def _expected_words(self, check: PageCheck, page_indices: Indices) -> Words:
        """Return a word per token of the pages; tokens that were not written must read zero."""
        page_tokens = self._bands[check.band].page_tokens
        positions = _token_places(page_indices, page_tokens)
        words = token_words(
            self._owners[check.band],
            np.full(positions.size, check.request_id, dtype=np.int64),
            positions,
            page_tokens=page_tokens,
        )
        words[positions >= check.written_tokens] = 0
        return narrowed(words, self._views[check.band])

    def _report_rows(
        self,
        check: PageCheck,
        page_indices: Indices,
        physical: Indices,
        differs: npt.NDArray[np.bool_],
        rows: Words,
    ) -> None:
        """Report the first wrong word of every page that has one."""
        page_tokens = self._bands[check.band].page_tokens
        expected = self._expected_words(check, page_indices)
        bad_rows = np.unique(differs.nonzero()[0])
        bad_pages, first = np.unique(bad_rows // page_tokens, return_index=True)
        for nth, row in zip(bad_pages.tolist(), bad_rows[first].tolist(), strict=True):
            column = int(differs[row].argmax())
            token_index = row % page_tokens
            finding = f"token {token_index} of the page, " + _difference(
                rows[row], column, int(expected[row])
            )
            page_index = int(page_indices[nth])
            if page_index * page_tokens + token_index >= check.written_tokens:
                finding += " (nothing was written there)"
            self._report(check.band, check.request_id, page_index, int(physical[nth]), finding)

    def _report_unbound(self, check: PageCheck, page_index: int, physical: int) -> None:
        end = self._bands[check.band].unit_index_end_count
        finding = (
            "the page is not bound"
            if physical == 0
            else f"the page lies outside the band's pages, which end at {end}"
        )
        self._report(check.band, check.request_id, page_index, physical, finding)

    def _check_state(self, check: StateCheck) -> None:
        view = self._views[check.band]
        band = self._bands[check.band]
        if not 0 < check.slot_index < band.unit_index_end_count:
            finding = f"slot is outside the band, which ends at {band.unit_index_end_count}"
            self._report(check.band, check.request_id, 0, check.slot_index, finding)
            return
        words = state_words(
            self._owners[check.band],
            np.array([check.request_id], dtype=np.int64),
            np.array([check.version_index], dtype=np.int64),
        )
        word = narrowed(words, view)[0]
        rows = view[check.slot_index : check.slot_index + 1]
        differs = rows != word
        if differs.any():
            column = int(differs.nonzero()[1][0])
            finding = _difference(rows[0], column, int(word))
            self._report(check.band, check.request_id, 0, check.slot_index, finding)
        self._checked_units += 1
        self._checked_bytes += band.unit_bytes

    def _report(
        self, band: str, request_id: RequestId, page_index: int, physical_index: int, finding: str
    ) -> None:
        self._mismatch_count += 1
        if len(self._mismatches) < MISMATCHES_KEPT_MAX:
            self._mismatches.append(
                Mismatch(
                    request_id=request_id,
                    band=band,
                    page_index=page_index,
                    physical_index=physical_index,
                    rank_index=self._rank_index,
                    finding=finding,
                )
            )


def _token_places(pages: Indices, page_tokens: int) -> Indices:
    """Return the numbers of all tokens of pages, page by page."""
    return (pages[:, None] * page_tokens + np.arange(page_tokens, dtype=np.int64)).reshape(-1)


def _difference(row: Words, column: int, expected: int) -> str:
    width = row.dtype.itemsize
    return (
        f"byte {column * width}: 0x{int(row[column]):0{2 * width}x} "
        f"instead of 0x{expected:0{2 * width}x}"
    )
