"""The painter and the forwards, over tables of a stand-in for client and allocator."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from kvd.errors import WorkloadError
from kvd.testing.forward import ForwardBuilder
from kvd.testing.painter import (
    MISMATCHES_KEPT_MAX,
    ArenaPainter,
    Corruption,
    PageCheck,
    PaintJob,
    TokenWrite,
)
from kvd.testing.passes import StepWork
from kvd_proto.memory import BandPlan, DType, Lifetime, RegionPlan, StoragePlan, TablePlan
from kvd_proto.scalars import RequestId

PAGE = 4
WINDOW = 6
ARENA_BYTES = 64 * 1024


def band_plan(name: str, lifetime: Lifetime, chain_index: int, entry_bytes: int) -> BandPlan:
    page_tokens = 1 if lifetime is Lifetime.STATE else PAGE
    return BandPlan(
        name=name,
        lifetime=lifetime,
        chain_index=chain_index,
        entry_bytes=entry_bytes,
        unit_bytes=entry_bytes * page_tokens,
        page_tokens=page_tokens,
        unit_index_min=1,
        unit_index_end_count=ARENA_BYTES // (entry_bytes * page_tokens),
        window_tokens=WINDOW if lifetime is Lifetime.WINDOW else 0,
    )


def storage_plan(page_bands_only: bool = False) -> StoragePlan:
    table = TablePlan(
        name="none", offset_bytes=ARENA_BYTES, dtype=DType.INT32, row_count=0, column_count=0
    )
    bands = [
        band_plan("state", Lifetime.STATE, 0, 128),
        band_plan("window_6", Lifetime.WINDOW, 1, 64),
        band_plan("full", Lifetime.FULL, 2, 32),
    ]
    return StoragePlan(
        stage_index=0,
        arena_bytes=ARENA_BYTES,
        total_bytes=ARENA_BYTES,
        sink_bytes=256,
        page_tokens=PAGE,
        context_tokens=4096,
        row_count=9,
        row_pages=1024,
        virtual_page_count=512,
        bands=tuple(bands[1:] if page_bands_only else bands),
        views=(),
        region=RegionPlan(
            band_maps=(), request_table=table, row_lengths=table, progress=table, scratch=table
        ),
    )


class Rows(NamedTuple):
    values: npt.NDArray[np.int64]
    indptr: npt.NDArray[np.int32]


class FakeTables:
    """Hands out pages upward from disjoint places; its owner may then spoil what it says."""

    def __init__(self, plan: StoragePlan) -> None:
        self.plan = plan
        self.pages: dict[tuple[str, int], list[int]] = {}
        self.slots: dict[int, int] = {}
        self.taken: dict[int, tuple[int, int]] = {}
        # Bytes [16K, 32K) for state, [32K, 48K) for the window, the rest for the full band.
        self._next = {"state": 128, "window_6": 128, "full": 384}

    def take(self, request: int, tokens: int) -> None:
        """Grow a request, granting pages in both token bands and a slot."""
        start = sum(self.taken.get(request, (0, 0)))
        self.taken[request] = (start, tokens)
        for band in ("window_6", "full"):
            pages = self.pages.setdefault((band, request), [])
            while len(pages) * PAGE < start + tokens:
                pages.append(self.new_unit(band))
        if request not in self.slots:
            self.slots[request] = self.new_unit("state")

    def forget(self, request: int) -> None:
        """End a request."""
        del self.taken[request], self.slots[request]
        for band in ("window_6", "full"):
            del self.pages[band, request]

    def slide(self, request: int, computed_tokens: int) -> list[int]:
        """Unbind window pages wholly behind the window; return which."""
        pages = self.pages["window_6", request]
        gone = max(0, computed_tokens - WINDOW + 1) // PAGE
        freed = [page for page in pages[:gone] if page]
        pages[:gone] = [0] * gone
        return freed

    def write_slots(self, band: str, ids: Sequence[int]) -> Rows:
        found: list[npt.NDArray[np.int64]] = []
        for request in ids:
            start, tokens = self.taken[request]
            places = np.arange(start, start + tokens)
            pages = np.array(self.pages[band, request], dtype=np.int64)
            found.append(pages[places // PAGE] * PAGE + places % PAGE)
        return self._ragged(found)

    def page_table(self, band: str, ids: Sequence[int]) -> Rows:
        return self._ragged([np.array(self.pages[band, request]) for request in ids])

    def state_slots(self, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.array([self.slots[request] for request in ids], dtype=np.int64)

    def new_unit(self, band: str) -> int:
        """Return a unit that nobody had."""
        self._next[band] += 1
        return self._next[band] - 1

    def _ragged(self, rows: Sequence[npt.NDArray[np.int64]]) -> Rows:
        ends = np.cumsum([0, *(row.size for row in rows)]).astype(np.int32)
        return Rows(np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64), ends)


class Rig:
    """Client, forwards and painter of one rank."""

    def __init__(self, *, corruption: Corruption | None = None, rank_index: int = 0) -> None:
        self.tables = FakeTables(storage_plan())
        self.arena = np.zeros(ARENA_BYTES, dtype=np.uint8)
        self.forward = ForwardBuilder(self.tables, corruption=corruption)
        self.painter = ArenaPainter(
            self.tables.plan, self.arena, rank_index=rank_index, corruption=corruption
        )

    def step(
        self,
        *grown: tuple[int, int],
        finished: tuple[int, ...] = (),
        sample: tuple[int, ...] = (),
    ) -> PaintJob:
        work = StepWork(
            requests=tuple(RequestId(request) for request, _ in grown),
            starts_tokens=tuple(sum(self.tables.taken.get(one, (0, 0))) for one, _ in grown),
            counts_tokens=tuple(count for _, count in grown),
            finished=tuple(RequestId(one) for one in finished),
            sample=tuple(RequestId(one) for one in sample),
        )
        for request, count in grown:
            self.tables.take(request, count)
        job = self.forward.build(work)
        self.painter.run(job)
        return job

    def entry(self, band: str, page: int, token: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of one token (of one slot, in the state band)."""
        plan = next(one for one in self.tables.plan.bands if one.name == band)
        start = page * plan.unit_bytes + token * plan.entry_bytes
        return self.arena[start : start + plan.entry_bytes]

    @property
    def sentences(self) -> list[str]:
        return [one.sentence for one in self.painter.statistics().mismatches]


def test_untouched_bytes_are_found_right() -> None:
    rig = Rig()
    rig.step((1, 10), (2, 3))
    rig.step((1, 1), (2, 1), sample=(2,))
    rig.step((1, 1), (2, 1), finished=(1, 2))

    counts = rig.painter.statistics()

    assert counts.mismatch_count == 0
    # 12 and 5 tokens of 32 and 64 bytes; the state of request 1 again as it enters page 3, that of
    # request 2 as it enters page 1.
    assert counts.written_bytes == 17 * 96 + 4 * 128
    # At the end 3 + 2 pages in both bands and 2 states, before that a sample of 1 + 1 and 1, and
    # page 0 of request 1's window after 10 tokens. Page 1 may slide from 13 tokens on.
    assert counts.checked_units == 12 + 3 + 1


@pytest.mark.parametrize("request_id", [1, 2])
@pytest.mark.parametrize(("band", "token"), [("full", 0), ("full", 3), ("window_6", 2)])
def test_one_changed_byte_is_found_and_names_request_band_and_page(
    request_id: int, band: str, token: int
) -> None:
    rig = Rig()
    rig.step((1, 8), (2, 8))
    page = rig.tables.pages[band, request_id][1]
    rig.entry(band, page, token)[9] ^= 1

    rig.step((1, 1), (2, 1), sample=(1, 2))

    assert len(rig.sentences) == 1
    assert rig.sentences[0].startswith(
        f"request {request_id}, band {band}, page 1 (physical {page}) on rank 0: "
        f"token {token} of the page, byte 8: 0x"
    )


def test_a_byte_behind_the_written_tokens_must_be_zero() -> None:
    rig = Rig()
    rig.step((1, 5))
    rig.entry("full", rig.tables.pages["full", 1][1], 3)[31] = 1

    rig.step((1, 1), finished=(1,))

    assert len(rig.sentences) == 1
    assert "token 3 of the page, byte 24" in rig.sentences[0]
    assert "nothing was written there" in rig.sentences[0]


def test_two_requests_with_each_others_page_are_both_found() -> None:
    rig = Rig()
    rig.step((1, 8), (2, 8))
    first, second = rig.tables.pages["full", 1], rig.tables.pages["full", 2]
    first[0], second[0] = second[0], first[0]

    rig.step((1, 1), (2, 1), sample=(1, 2))

    assert [sentence.split(" (")[0] for sentence in rig.sentences] == [
        "request 1, band full, page 0",
        "request 2, band full, page 0",
    ]


def test_another_ranks_bytes_are_found() -> None:
    rig, other = Rig(), Rig(rank_index=1)
    rig.step((1, 8))
    other.step((1, 8))
    rig.arena[:] = other.arena

    rig.step((1, 1), sample=(1,))

    assert rig.painter.statistics().mismatch_count == 2 * 2 + 1


@pytest.mark.parametrize(("page", "said"), [(0, "is not bound"), (1 << 20, "outside the band")])
def test_a_page_that_is_unbound_or_outside_is_found(page: int, said: str) -> None:
    rig = Rig()
    rig.step((1, 8))
    rig.tables.pages["full", 1][1] = page

    rig.step((1, 1), sample=(1,))

    assert len(rig.sentences) == 1
    assert rig.sentences[0].startswith("request 1, band full, page 1")
    assert said in rig.sentences[0]


def test_window_pages_are_checked_before_they_may_slide_out() -> None:
    rig = Rig()
    rig.step((1, 8))
    rig.entry("window_6", rig.tables.pages["window_6", 1][0], 0)[0] ^= 1

    # 9 tokens: the next slide may free page 0, whose tokens are all before 9 - 6 + 1.
    rig.step((1, 1))

    assert [sentence.split(" (")[0] for sentence in rig.sentences] == [
        "request 1, band window_6, page 0"
    ]


def test_window_pages_that_slid_out_are_no_mismatch() -> None:
    rig = Rig()
    rig.step((1, 20))
    assert rig.tables.slide(1, 20)

    rig.step((1, 1), finished=(1,))

    assert rig.sentences == []


def test_a_window_page_that_slid_out_too_early_is_found() -> None:
    rig = Rig()
    rig.step((1, 20))
    rig.tables.slide(1, 24)

    rig.step((1, 1), finished=(1,))

    assert [sentence.split(": ")[1] for sentence in rig.sentences] == ["the page is not bound"]


def test_a_state_of_an_earlier_version_is_found() -> None:
    rig = Rig()
    rig.step((1, 3))
    before = rig.entry("state", rig.tables.slots[1], 0).copy()
    rig.step((1, 2))
    rig.entry("state", rig.tables.slots[1], 0)[:] = before

    rig.step((1, 1), sample=(1,))

    assert [sentence.split(" (")[0] for sentence in rig.sentences] == [
        "request 1, band state, page 0"
    ]


def test_a_new_state_slot_must_read_zero() -> None:
    rig = Rig()
    rig.entry("state", 128, 0)[100] = 1

    rig.step((1, 3))

    assert rig.sentences == [
        "request 1, band state, page 0 (physical 128) on rank 0: a new slot does not read zero"
    ]


@pytest.mark.parametrize(
    ("band", "page"), [("full", 0), ("full", 2), ("window_6", 1), ("state", 0)]
)
def test_a_planted_corruption_is_found_where_it_was_planted(band: str, page: int) -> None:
    rig = Rig(corruption=Corruption(RequestId(2), band, page))
    rig.step((1, 7), (2, 7))
    rig.step((1, 1), (2, 1))
    rig.step((1, 1), (2, 1))
    rig.step((1, 1), (2, 1), finished=(1, 2))

    assert rig.painter.statistics().corrupted_count == (2 if band == "state" else 1)
    assert {sentence.split(" (")[0] for sentence in rig.sentences} == {
        f"request 2, band {band}, page {page}"
    }


def move(rig: Rig, band: str, request: int, place: int, *, with_bytes: bool = True) -> None:
    """Move a page, or the slot, of a request to a fresh unit, as the allocator would."""
    plan = next(one for one in rig.tables.plan.bands if one.name == band)
    new = rig.tables.new_unit(band)
    if band == "state":
        old, rig.tables.slots[request] = rig.tables.slots[request], new
    else:
        old, rig.tables.pages[band, request][place] = rig.tables.pages[band, request][place], new
    if with_bytes:
        units = rig.arena[: ARENA_BYTES // plan.unit_bytes * plan.unit_bytes]
        rows = units.reshape(-1, plan.unit_bytes)
        rows[new] = rows[old]


MOVED = [("full", 0), ("full", 1), ("window_6", 1), ("state", 0)]


@pytest.mark.parametrize(("band", "place"), MOVED)
def test_what_moved_with_its_bytes_is_found_right_at_its_new_place(band: str, place: int) -> None:
    rig = Rig()
    rig.step((1, 7), (2, 7))
    move(rig, band, 1, place)

    rig.step((1, 1), (2, 1))
    rig.step((1, 1), (2, 1), finished=(1, 2))

    assert rig.sentences == []


@pytest.mark.parametrize(("band", "place"), MOVED)
def test_what_moved_without_its_bytes_is_found(band: str, place: int) -> None:
    rig = Rig()
    rig.step((1, 7), (2, 7))
    move(rig, band, 1, place, with_bytes=False)

    rig.step((2, 1), sample=(1,))

    assert [sentence.split(" (")[0] for sentence in rig.sentences] == [
        f"request 1, band {band}, page {place}"
    ]


@pytest.mark.parametrize(("band", "place"), MOVED)
def test_a_corruption_that_waits_for_a_move_is_found_where_the_page_lies_then(
    band: str, place: int
) -> None:
    rig = Rig(corruption=Corruption(RequestId(2), band, place, after_move=True))
    rig.step((1, 6), (2, 6), sample=(1, 2))
    assert rig.painter.statistics().corrupted_count == 0
    move(rig, band, 2, place)

    rig.step((1, 1), (2, 1), sample=(1, 2))
    rig.step((1, 1), (2, 1), finished=(1, 2))

    # The state is rewritten as request 2 fills its second page, and flipped again.
    assert rig.painter.statistics().corrupted_count == (2 if band == "state" else 1)
    assert {sentence.split(" (")[0] for sentence in rig.sentences} == {
        f"request 2, band {band}, page {place}"
    }


def test_a_page_that_moves_twice_is_corrupted_once() -> None:
    rig = Rig(corruption=Corruption(RequestId(1), "full", 0, after_move=True))
    rig.step((1, 7))
    move(rig, "full", 1, 0)
    rig.step((1, 1))
    move(rig, "full", 1, 0)

    rig.step((1, 1), finished=(1,))

    assert rig.painter.statistics().corrupted_count == 1
    assert len(rig.sentences) == 1


def test_a_page_of_a_request_that_was_retracted_did_not_move() -> None:
    rig = Rig(corruption=Corruption(RequestId(1), "full", 0, after_move=True))
    rig.step((1, 7))
    rig.forward.forget((RequestId(1),))
    rig.tables.forget(1)

    rig.step((1, 7), finished=(1,))

    assert rig.painter.statistics().corrupted_count == 0


def test_all_mismatches_are_counted_and_the_first_are_kept() -> None:
    rig = Rig()
    rig.step((1, 200))
    rig.arena[:] = 0

    rig.step((1, 1), finished=(1,))

    counts = rig.painter.statistics()
    assert len(counts.mismatches) == MISMATCHES_KEPT_MAX
    assert counts.mismatch_count == 50 + 50 + 1


def test_a_page_size_of_one_token_is_checked_in_bulk() -> None:
    plan = storage_plan(page_bands_only=True)
    arena = np.zeros(ARENA_BYTES, dtype=np.uint8)
    painter = ArenaPainter(plan, arena, rank_index=0)
    pages = np.arange(300, 400, dtype=np.int64)
    positions = np.arange(400, dtype=np.int64)
    write = TokenWrite("full", np.full(400, 5), positions, positions + 300 * PAGE)
    check = PageCheck("full", RequestId(5), 0, 0, pages, 400)

    painter.run(PaintJob(token_writes=(write,), page_checks=(check,)))

    assert painter.statistics().mismatch_count == 0
    assert painter.statistics().checked_units == 100


def test_tables_that_miss_a_page_stop_the_replay() -> None:
    rig = Rig()
    rig.step((1, 8))
    rig.tables.pages["full", 1].append(999)

    with pytest.raises(WorkloadError, match="band full: the tables name 3 pages of request 1"):
        rig.step((2, 1), sample=(1,))


def test_write_places_that_miss_a_token_stop_the_replay() -> None:
    rig = Rig()
    rig.step((1, 8))
    rig.tables.taken[1] = (7, 1)
    work = StepWork((RequestId(1),), (8,), (2,), (), ())

    with pytest.raises(WorkloadError, match="the tables name places for"):
        rig.forward.build(work)


def test_digests_of_places_agree_only_if_all_places_do() -> None:
    rigs = [Rig(), Rig(), Rig()]
    rigs[2].tables.pages["full", 1] = [500]
    for rig in rigs:
        rig.step((1, 8))

    first, second, third = (rig.forward.places_digest for rig in rigs)

    assert first == second
    assert first != third


def test_useful_bytes_count_what_windows_still_need() -> None:
    rig = Rig()
    rig.step((1, 20), (2, 3))
    rig.forward.forget((RequestId(1),))
    rig.step((2, 1))

    assert rig.forward.useful_bytes_max == 23 * 32 + (6 + 3) * 64 + 2 * 128
