"""One way to break each invariant of the allocator by hand, and to have it looked at."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from kvd.alloc.band import Band, Freed, Units
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.alloc.clearance import Consumer
from kvd.alloc.copies import Copies
from kvd.alloc.estimate import estimate_available
from kvd.alloc.requests import Grant, RequestTable
from kvd.alloc.signals import copy_signal, transfer_signal
from kvd.alloc.transfers import Transfers
from kvd.alloc.uses import UseKind
from tests.stateful.chains import THREE, admit

STATE, WINDOW, OWNER = 0, 1, 2
STRICT = CheckMonitor(CheckLevel.STRICT)


def units(*numbers: int) -> Units:
    return np.array(numbers, dtype=np.int64)


def busy(*, ended: int = 0) -> RequestTable:
    """Return three requests with two pages and a slot each; ``ended`` is one that is over."""
    table = THREE.table()
    for request in (1, 2, 3):
        admit(table, request)
        assert isinstance(table.take(table.names.rows_of([request]), 8), Grant)
    if ended:
        table.free(table.names.rows_of([ended]))
        table.chain.merge_freed()
    table.check()
    return table


def _band(index: int) -> Band:
    return busy().chain.bands[index]


def _live(band: Band) -> Units:
    return band.physical(band.bound_ids())


# ---- bands ---------------------------------------------------------------------------------------


def span_in_bounds() -> None:
    band = _band(STATE)
    band.start_index += 1
    band.check_counts()


def conservation() -> None:
    band = _band(OWNER)
    band.live_units += 1
    band.check_counts()


def free_of_bound_page() -> None:
    chain = busy().chain
    chain.release([Freed(OWNER, units(70))])


def take_unbound() -> None:
    band = _band(OWNER)
    band.bind(units(70), _live(band)[:1])


def maps_inverse() -> None:
    band = _band(WINDOW)
    band._physical_of[band.bound_ids()[0]] = 0
    band.check()


def ids_partition() -> None:
    free_ids = (band := _band(OWNER)).free_ids
    assert free_ids is not None
    free_ids.take(1)
    band.check()


def holes_ordered() -> None:
    band = busy(ended=1).chain.bands[OWNER]
    band._holes.take(1)
    band.check()


def take_cleared() -> None:
    band = _band(OWNER)
    band.usage.open(UseKind.LOAD_RESERVATION, copy_signal(1), _live(band))
    band.usage.hazards(_live(band)[:1], Consumer.ZEROING)


def move_cleared() -> None:
    band = _band(OWNER)
    band.usage.open(UseKind.LOAD_RESERVATION, copy_signal(1), _live(band))
    band.usage.writers(_live(band)[:1])


def _drawn_back() -> tuple[Band, tuple[int, int], Units]:
    """Return a band with holes at its anchor, the span to draw it back to, and what leaves it."""
    band = busy(ended=1).chain.bands[OWNER]
    start, end = band.span
    target = (start + band.hole_units, end)
    return band, target, np.arange(start, target[0])


def move_source_bound() -> None:
    band, target, leaving = _drawn_back()
    names = band._owner_of[leaving]
    band._physical_of[names[names > 0]] += 1
    band.rearrange(target)


def move_disjoint() -> None:
    band, target, leaving = _drawn_back()
    sources = leaving[band._owner_of[leaving] > 0]

    def choose(count: int, consumer: Consumer) -> Units:
        return sources[:count]

    cast("Any", band)._choose = choose
    band.rearrange(target)


def segment_bound() -> None:
    busy().chain.release([Freed(WINDOW, units(70))])


def segment_released() -> None:
    chain = busy().chain
    chain.release([Freed(OWNER, chain.owner.bound_ids()[:1])])


def slot_sentinel() -> None:
    busy().chain.release([Freed(STATE, units(0))])


# ---- ledgers -------------------------------------------------------------------------------------


def release_once() -> None:
    _band(OWNER).usage.close(UseKind.COPY_READ, copy_signal(5))


def no_orphan() -> None:
    band = _band(OWNER)
    band.usage.open(UseKind.COPY_READ, copy_signal(5), units(band.span[0] - 1))
    band.check()


def records_exact() -> None:
    band = _band(OWNER)
    band.usage._uses[UseKind.COPY_READ, copy_signal(5)] = np.sort(_live(band))[::-1]
    band.check()


# ---- chains --------------------------------------------------------------------------------------


def spans_ordered() -> None:
    chain = busy().chain
    chain.bands[WINDOW].start_index = 2
    chain.check()


def promises_covered() -> None:
    chain = busy().chain
    chain.owner.promise(10_000)
    chain.check()


def windows_on_owner() -> None:
    chain = busy().chain
    chain.owner.release(chain.owner.bound_ids()[:1])
    chain.check()


def take_matches_answer() -> None:
    chain = busy().chain
    chain.excused(chain.explain((999, 0, 0)))


def snapshot_fresh() -> None:
    chain = busy().chain
    chain.snapshot()
    chain.owner.promised_units += 1
    chain.owner.live_units += 1
    chain.snapshot()


def estimate_in_decision() -> None:
    chain = busy().chain
    chain.monitor.deciding = True
    estimate_available(chain)[0].read()


# ---- requests and values -------------------------------------------------------------------------


def rows_match_bands() -> None:
    table = busy()
    table.rows.page_count[table.names.row_of[2]] = 1
    table.check()


def promises_add_up() -> None:
    table = busy()
    table.chain.owner.promise(-1)
    table.check()


def rows_over_price() -> None:
    table = busy()
    table.rows.peak_units[WINDOW][table.names.row_of[2]] = 1
    table.check(deep=False)


def names_match_rows() -> None:
    table = busy()
    row_of = table.names.row_of
    row_of[1], row_of[2] = row_of[2], row_of[1]
    table.check()


def rows_partition() -> None:
    table = busy()
    table.rows.free.take(1)
    table.check()


def rows_partition_unclean() -> None:
    table = busy()
    table.rows.prompt_tokens[table.rows.free.ids()[0]] = 1
    table.check()


def columns_exact() -> None:
    table = busy()
    table.rows.tokens[table.names.row_of[2]] = 9
    table.check()


def pages_ordered() -> None:
    table = busy()
    table.insert(1, table.names.row_of[2])
    table.check()
    value = table.values.of_number[1]
    value.bound[WINDOW] = value.bound[WINDOW][::-1]
    table.check()


# ---- copies, transfers and steps -----------------------------------------------------------------


def _copies() -> Copies:
    """Return a load of one unit into a value that slid out of its window."""
    table = busy()
    row = table.names.row_of[2]
    table.insert(1, row)
    value = table.values.of_number[1]
    dropped = value.bound[WINDOW][:1]
    value.bound[WINDOW] = value.bound[WINDOW][1:]
    table.chain.release([Freed(WINDOW, dropped)])
    copies = Copies(table.chain, table.values)
    assert isinstance(copies.reserve(1, 1, (0, 1, 0)), list)
    copies.check()
    return copies


def records_match() -> None:
    copies = _copies()
    copies.loads[1].reserved[WINDOW] = units()
    copies.check()


def hold_matches() -> None:
    table = busy()
    transfers = Transfers(table.chain, Copies(table.chain, table.values))
    owner = table.chain.owner
    transfers.hold(1, [units(), units(), owner.bound_ids()[:2]])
    transfers.check()
    owner.usage.close(UseKind.RECEIVE_HOLD, transfer_signal(1))
    transfers.check()


def step_order() -> None:
    busy().chain.steps.launch(5, 0)


def counters_ordered() -> None:
    chain = busy().chain
    chain.steps.launch(1, 0)
    chain.steps.retired_count = 5
    chain.order.check()


def clearings_bound() -> None:
    table = busy()
    table.chain.launch_step(1, 0, None)
    table.check()
    slots = _band(STATE).bound_ids()
    table.chain.steps.clearings.hand_out(slots[:1] + 90)
    table.check()


def pending_keyed() -> None:
    table = busy()
    table.chain.launch_step(1, 0, None)
    table.free(table.names.rows_of([1]))
    table.chain.check()
    table.chain.steps.processed_count = 1
    table.chain.owner.check_counts()


def waits_emitted() -> None:
    order = busy().chain.order
    order.wait([copy_signal(1)])
    order.check_emitted()


BREAKERS: dict[str, Callable[[], None]] = {
    "band.span_in_bounds": span_in_bounds,
    "band.conservation": conservation,
    "band.free_of_bound_page": free_of_bound_page,
    "band.take_unbound": take_unbound,
    "band.maps_inverse": maps_inverse,
    "band.ids_partition": ids_partition,
    "band.holes_ordered": holes_ordered,
    "band.take_cleared": take_cleared,
    "band.move_cleared": move_cleared,
    "band.move_source_bound": move_source_bound,
    "band.move_disjoint": move_disjoint,
    "window.segment_bound": segment_bound,
    "window.segment_released": segment_released,
    "state.slot_sentinel": slot_sentinel,
    "ledger.release_once": release_once,
    "ledger.no_orphan": no_orphan,
    "ledger.records_exact": records_exact,
    "chain.spans_ordered": spans_ordered,
    "chain.promises_covered": promises_covered,
    "chain.windows_on_owner": windows_on_owner,
    "chain.take_matches_answer": take_matches_answer,
    "chain.snapshot_fresh": snapshot_fresh,
    "chain.estimate_in_decision": estimate_in_decision,
    "request.rows_match_bands": rows_match_bands,
    "request.promises_add_up": promises_add_up,
    "request.rows_over_price": rows_over_price,
    "request.names_match_rows": names_match_rows,
    "request.rows_partition": rows_partition,
    "request.columns_exact": columns_exact,
    "value.pages_ordered": pages_ordered,
    "copy.records_match": records_match,
    "transfer.hold_matches": hold_matches,
    "step.order": step_order,
    "step.counters_ordered": counters_ordered,
    "step.clearings_bound": clearings_bound,
    "step.pending_keyed": pending_keyed,
    "order.waits_emitted": waits_emitted,
}
