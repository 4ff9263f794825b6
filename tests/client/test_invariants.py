"""Every invariant that the client documents, broken by hand and found by its name."""

import re

import numpy as np
import pytest

from kvd_client import Client, KvdClientError, ReplyError
from kvd_client.book import RequestBook
from kvd_client.calls import Call
from kvd_client.flow import Exchange
from kvd_client.results import Columns
from kvd_client.steps import StepBook
from kvd_proto.codec import decode_reply, encode
from kvd_proto.control import Header, MessageKind
from kvd_proto.operations import Admit, Standing
from kvd_proto.outcomes import AdmitResult, BatchReply, Column, Done
from tests.client.engine_daemon import Answer, EngineDaemon

ROWS = 8


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def note_admitted(book: RequestBook, request: int, row: int) -> None:
    """Tell the book that the daemon gave a request a row."""
    call = Call(Admit(b"", b"", b""), b"", ids=ids(request))
    columns = Columns(ids(0, row, 8, 8), (1, 1, 1, 1))
    book.note(call, AdmitResult(Column(0), Column(1), Column(2), Column(3)), columns)


def swallow(rank: int, header: Header, body: bytes) -> list[Answer] | None:
    return [] if header.kind is MessageKind.PING else None


def test_a_request_with_two_rows_breaks_rows_match() -> None:
    book = RequestBook(ROWS)
    note_admitted(book, request=5, row=1)
    book.check()

    note_admitted(book, request=5, row=2)

    with pytest.raises(KvdClientError, match=re.escape("book.rows_match")):
        book.check()


def test_a_standing_request_without_a_row_breaks_standing_known() -> None:
    book = RequestBook(ROWS)

    book.note(Call(Standing(), b"", ids=ids(5)), Done(), Columns(ids(), ()))

    with pytest.raises(KvdClientError, match=re.escape("book.standing_known: request 5")):
        book.check()


def test_a_step_launched_out_of_turn_breaks_in_order() -> None:
    steps = StepBook(follows=False)
    steps.check()

    steps.launched = 2

    with pytest.raises(KvdClientError, match=re.escape("steps.in_order: step 2")):
        steps.check()


def test_a_follower_counts_the_steps_of_its_leader() -> None:
    steps = StepBook(follows=True)

    steps.launched = 7

    steps.check()


def test_a_reply_that_leaves_out_an_entry_breaks_the_cursor(
    daemon: EngineDaemon, kv: Client
) -> None:
    def skip_one(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        ((answer, reply),) = daemon.serve(rank, header, body)
        found = decode_reply(reply)
        return [(answer, encode(BatchReply(found.position + 1, found.entries)))]

    daemon.hook = lambda rank, header, body: (
        skip_one(rank, header, body) if header.kind is MessageKind.BATCH else None
    )

    expected = re.escape("session.cursor: position 1 is next, entries from 2 came")
    with pytest.raises(ReplyError, match=expected), kv.batch() as batch:
        batch.idle()


def test_a_message_behind_an_unanswered_one_breaks_one_outstanding(
    daemon: EngineDaemon, kv: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.hook = swallow
    assert isinstance(next(kv.session.ping()), Exchange)
    monkeypatch.setattr(kv.session, "settle", lambda: iter(()))

    with pytest.raises(KvdClientError, match=re.escape("session.one_outstanding: a ping")):
        next(kv.session.ping())

    monkeypatch.undo()
    daemon.hook = None


def test_a_row_is_given_away_twice_only_where_another_program_acts() -> None:
    book = RequestBook(ROWS)
    note_admitted(book, request=5, row=1)
    with pytest.raises(ReplyError, match="request 6 was given row 1, which is not free here"):
        note_admitted(book, request=6, row=1)

    book.note_other(Done(), Columns(ids(), ()), lambda rows: rows)
    note_admitted(book, request=6, row=1)

    assert book.rows([6]).tolist() == [1]
    assert book.requests_count == 1
    book.check()


def test_a_row_that_there_is_not_is_an_error_whoever_has_it() -> None:
    book = RequestBook(ROWS)
    columns = Columns(ids(0, ROWS, 8, 8), (1, 1, 1, 1))
    result = AdmitResult(Column(0), Column(1), Column(2), Column(3))
    with pytest.raises(ReplyError, match=re.escape("rows [8] are not all among the 8")):
        book.note_other(result, columns, lambda rows: rows)
