"""A request that does not fit changes nothing but its own standing as an id."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvd.alloc.admission import Admission, AdmissionPass
from kvd.alloc.requests import Grant, RequestTable
from kvd.errors import OperationError
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason, Verdict
from tests.stateful.chains import ONE, THREE, Picture, World, admit, picture

WINDOWED = World(
    arena_bytes=3 + 37,
    unit_bytes=(3, 2),
    lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(2, 0),
    page_tokens=1,
    chunk_tokens=8,
)
"""37 bytes: 8 tokens of the owner leave 21, a window of 2 beside a chunk of 5."""


def _memory(table: RequestTable) -> Picture:
    """Return everything but the ids: bands, rows, promises."""
    return picture((table.chain, table.rows, table.holdings))


def _grown(table: RequestTable, request: int, tokens: int) -> None:
    rows = table.names.rows_of([request])
    assert isinstance(table.take(rows, tokens), Grant)
    table.advance(rows, tokens)


def _full() -> RequestTable:
    """Return ten pages of which eight are held or promised."""
    table = replace(ONE, arena_bytes=110, virtual_page_count=99).table()
    admit(table, 1, prompt=8, new=24)
    _grown(table, 1, 8)
    return table


def _lapsed() -> RequestTable:
    """Return ten pages: two held, six that a lapsed request may still grow by."""
    table = _full()
    table.holdings.lapse(table.names.rows_of([1]))
    return table


def _crowded() -> RequestTable:
    """Return a table without a free row."""
    table = replace(THREE, row_count=2).table()
    admit(table, 1, prompt=4, new=4)
    _grown(table, 1, 4)
    return table


def _windowed() -> RequestTable:
    table = WINDOWED.table()
    admit(table, 1, prompt=1, new=0)
    _grown(table, 1, 1)
    return table


def _fixed() -> RequestTable:
    """Return a table without requests whose arena holds units that nobody gives back."""
    table = replace(ONE, arena_bytes=110, virtual_page_count=99).table()
    assert table.chain.make_room((8,)) == []
    table.chain.take_pages(8)
    return table


REFUSALS = [
    pytest.param(_full, (30, 35, 0, 0), Reason.TOO_LONG, False, id="longer than the context"),
    pytest.param(_full, (44, 0, 0, 0), Reason.NO_BYTES, False, id="in no empty arena"),
    pytest.param(_full, (12, 0, 0, 0), Reason.NO_BYTES, True, id="not beside what is promised"),
    pytest.param(_lapsed, (12, 0, 0, 1000), Reason.NO_BYTES, True, id="not beside growth"),
    pytest.param(_crowded, (4, 0, 0, 0), Reason.NO_ROWS, True, id="no row"),
    pytest.param(_windowed, (8, 0, 8, 0), Reason.NO_BYTES, True, id="only in shorter chunks"),
    pytest.param(_fixed, (12, 0, 0, 0), Reason.NO_BYTES, False, id="nobody gives back"),
]
"""Who is there, what is asked (prompt, new, chunk, growth), why not, and whether it may ask again.
"""

Case = tuple[int, int, int, int]


def _ask(table: RequestTable, case: Case, request: int = 2) -> Admission:
    prompt, new, chunk, growth = case
    return admit(table, request, prompt=prompt, new=new, chunk=chunk, growth_permille=growth)


@pytest.mark.case("65")
@pytest.mark.parametrize(("world", "case", "reason", "waits"), REFUSALS)
def test_a_refusal_leaves_memory_as_it_was_and_says_whether_to_ask_again(
    world: Callable[[], RequestTable], case: Case, reason: Reason, waits: bool
) -> None:
    table = world()
    before, live, epoch = _memory(table), table.live_count, table.names.epoch_count
    answer = _ask(table, case)
    assert _memory(table) == before
    assert (table.live_count, table.names.epoch_count) == (live, epoch)
    assert answer.verdict is (Verdict.WAIT if waits else Verdict.UNSCHEDULABLE)
    assert (answer.row_index, answer.chunk_tokens) == (0, 0)
    assert answer.shortage is not None
    assert (answer.shortage.reason, answer.shortage.waiting_helps) == (reason, waits)
    assert table.names.waits(2) is waits


@pytest.mark.parametrize(("world", "case", "reason", "waits"), REFUSALS)
def test_asking_again_gets_the_same_answer_where_it_may_be_asked(
    world: Callable[[], RequestTable], case: Case, reason: Reason, waits: bool
) -> None:
    table = world()
    first = _ask(table, case)
    if waits:
        assert _ask(table, case) == first
    else:
        with pytest.raises(OperationError, match="request id 2 was used before"):
            table.names.check_new(2)
        assert _ask(table, case, 3) == first


@pytest.mark.parametrize(("world", "case", "reason", "waits"), REFUSALS)
def test_who_is_refused_does_not_stand_in_the_way_of_the_next_in_its_pass(
    world: Callable[[], RequestTable], case: Case, reason: Reason, waits: bool
) -> None:
    prompt, new, chunk, growth = case
    tables = world(), world()
    passes = [AdmissionPass(table, growth_permille=growth) for table in tables]
    passes[0].admit(2, prompt_tokens=prompt, new_tokens_max=new, chunk_tokens=chunk)
    answers = [item.admit(3, prompt_tokens=1, new_tokens_max=0, chunk_tokens=0) for item in passes]
    assert answers[0] == answers[1]
    assert _memory(tables[0]) == _memory(tables[1])


@pytest.mark.case("27")
def test_a_request_that_waited_is_admitted_once_the_others_gave_back_what_was_named() -> None:
    table = _windowed()
    waiting = _ask(table, (8, 0, 8, 0))
    assert waiting.verdict is Verdict.WAIT
    assert waiting.shortage is not None
    assert waiting.shortage.remover == "1 request that holds rows"
    table.free(table.names.rows_of([1]))
    answer = _ask(table, (8, 0, 8, 0))
    assert (answer.verdict, answer.chunk_tokens) == (Verdict.FITS, 5)
    rows = table.names.rows_of([2])
    for tokens in (5, 3):
        assert isinstance(table.take(rows, tokens), Grant)
        table.advance(rows, tokens)
        table.holdings.check()


@pytest.mark.parametrize("chunk", [8, 7, 6, 5, 4, 3])
def test_a_chunk_beside_others_is_the_one_asked_or_none(chunk: int) -> None:
    table = _windowed()  # 5 bytes are held: a chunk of 3 would fit beside them
    answer = _ask(table, (8, 0, chunk, 0))
    expected = (Verdict.FITS, 3) if chunk == 3 else (Verdict.WAIT, 0)
    assert (answer.verdict, answer.chunk_tokens) == expected


def test_a_request_that_could_wait_is_refused_where_nobody_holds_a_row() -> None:
    table = _fixed()
    shortage = _ask(table, (12, 0, 0, 0)).shortage
    assert shortage is not None
    assert not shortage.waiting_helps
    assert table.chain.bands[0].live_units == 8
    assert np.count_nonzero(table.rows.request_id) == 0
