"""Values: what outlives the request that wrote it."""

import numpy as np
import pytest

from kvd.alloc.admission import AdmissionPass
from kvd.alloc.requests import Grant, RequestTable
from kvd.errors import InvariantError, OperationError
from kvd_proto.errors import ErrorCode
from kvd_proto.outcomes import Verdict
from tests.stateful.chains import PAIR, THREE, admit, picture


def _with_value(*, tokens: int = 20) -> RequestTable:
    """Return a table with a value 3 of what request 1 held: 5 pages, 3 of them in the window."""
    table = THREE.table()
    assert admit(table, 1, prompt=tokens, chunk=tokens).verdict is Verdict.FITS
    rows = table.names.rows_of([1])
    assert isinstance(table.take(rows, tokens), Grant)
    table.advance(rows, tokens)
    table.insert(3, int(rows[0]))
    table.holdings.check()
    return table


def test_a_request_that_becomes_a_value_keeps_its_units_and_gives_its_promise_back() -> None:
    table = _with_value()
    value = table.values.get(3)
    assert value.pages.size == 5
    assert value.bound[1].tolist() == value.pages[3:].tolist()
    assert value.slot > 0
    assert [band.live_units for band in table.chain.bands] == [1, 2, 5]
    assert table.chain.promised_units == (0, 0, 0)
    assert (table.live_count, table.holder_count, table.slotless_count) == (0, 1, 0)
    assert len(table.rows.free) == THREE.row_count - 1
    with pytest.raises(OperationError, match="request 1 has ended"):
        table.names.rows_of([1])


@pytest.mark.case("44")
def test_a_page_that_slid_out_of_a_window_is_missing_there() -> None:
    value = _with_value().values.get(3)
    assert value.missing(1).tolist() == value.pages[:3].tolist()


def test_an_evicted_value_gives_everything_back() -> None:
    table = _with_value()
    value = table.values.get(3)
    freed = {index: ids.tolist() for index, ids in table.values.evict([3])}
    assert freed == {0: [value.slot], 1: value.bound[1].tolist(), 2: value.pages.tolist()}
    table.chain.settle_freed()
    table.holdings.check()
    assert [band.live_units for band in table.chain.bands] == [0, 0, 0]
    assert table.holder_count == 0


def test_what_is_evicted_under_a_step_in_flight_pends() -> None:
    table = _with_value()
    table.chain.launch_step(1, 0, None)
    table.values.evict([3])
    assert [band.pending_units for band in table.chain.bands] == [1, 2, 5]
    table.chain.process_step(1)
    assert [band.pending_units for band in table.chain.bands] == [0, 0, 0]


@pytest.mark.case("44")
@pytest.mark.parametrize(("number", "problem"), [(3, "evicted"), (4, "never"), (0, "never")])
def test_a_value_that_is_not_there_is_named(number: int, problem: str) -> None:
    table = _with_value()
    table.values.evict([3])
    with pytest.raises(OperationError, match=f"value {number} was .*{problem}") as caught:
        table.values.get(number)
    assert caught.value.code is ErrorCode.UNKNOWN_NUMBER


def test_a_unit_that_no_request_and_no_value_holds_is_found() -> None:
    table = _with_value()
    value = table.values.get(3)
    value.pages = value.pages[1:]
    with pytest.raises(InvariantError, match=r"request\.rows_match_bands"):
        table.holdings.check()


def test_a_value_is_worth_waiting_for_because_it_can_be_evicted() -> None:
    table = PAIR.table()
    assert admit(table, 1, prompt=8, new=4).verdict is Verdict.FITS
    rows = table.names.rows_of([1])
    assert isinstance(table.take(rows, 12), Grant)
    table.insert(1, int(rows[0]))
    before = picture(table.chain)
    answer = admit(table, 2, prompt=8, new=4)
    assert answer.verdict is Verdict.WAIT
    assert answer.shortage is not None
    assert answer.shortage.remover == "1 value that can be evicted"
    assert picture(table.chain) == before
    table.values.evict([1])
    assert (
        AdmissionPass(table, growth_permille=0)
        .admit(2, prompt_tokens=8, new_tokens_max=4, chunk_tokens=0)
        .verdict
        is Verdict.FITS
    )


def test_a_value_without_a_slot_names_none() -> None:
    table = PAIR.table()
    admit(table, 1, prompt=4, new=0)
    assert isinstance(table.take(table.names.rows_of([1]), 4), Grant)
    table.insert(1, int(table.names.rows_of([1])[0]))
    assert table.values.get(1).slot == 0
    assert np.array_equal(table.values.ids(0), table.values.ids(1))


def test_values_are_taken_over_where_they_lie_and_everything_else_is_free() -> None:
    before, after = _with_value(), THREE.table()
    after.values.adopt(before.values, (3,))
    after.holdings.check()
    for old, new in zip(before.chain.bands, after.chain.bands, strict=True):
        ids = old.bound_ids()
        assert new.bound_ids().tolist() == ids.tolist()
        assert new.physical(ids).tolist() == old.physical(ids).tolist()
    assert after.live_count == 0
    assert len(after.rows.free) == THREE.row_count - 1
    with pytest.raises(OperationError, match="highest so far is 3"):
        after.values.numbers.check_new(3)
    after.values.evict([3])
    after.chain.settle_freed()
    after.holdings.check()
    fresh = THREE.table().chain
    assert [end - start for start, end in after.chain.spans] == [0, 0, 0]
    assert [len(band.free_ids or ()) for band in after.chain.bands] == [
        len(band.free_ids or ()) for band in fresh.bands
    ]


@pytest.mark.case("115")
def test_a_value_that_is_not_taken_over_leaves_no_trace() -> None:
    before, after = _with_value(), THREE.table()
    after.values.adopt(before.values, ())
    after.holdings.check()
    assert [band.live_units for band in after.chain.bands] == [0, 0, 0]
