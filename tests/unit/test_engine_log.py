"""The log: one order, bounded memory."""

# pyright: reportPrivateUsage=false

import pytest

from kvd.engine.log import LogRecord, StageLog
from kvd.errors import InvariantError, SessionError
from kvd_proto.codec import decode_reply, encode
from kvd_proto.errors import ErrorCode
from kvd_proto.outcomes import Done, Entry, Outcome


def _record(index: int) -> LogRecord:
    return LogRecord(0, index, b"body", encode(Entry(0, index, 0, Outcome(Done()))))


def _log(count: int, *, ring: int = 8) -> StageLog:
    log = StageLog(ring_entries_max=ring)
    for index in range(count):
        log.extend([_record(index)])
        assert log.end_position == index + 1
    return log


def test_the_first_entry_stands_at_position_one() -> None:
    assert (_log(0).end_position, _log(0).first_position) == (0, 1)
    assert (_log(3).end_position, _log(3).first_position) == (3, 1)


@pytest.mark.parametrize(("applied", "end"), [(0, 5), (2, 4), (5, 5), (4, 5)])
def test_a_reply_holds_the_entries_behind_the_cursor(applied: int, end: int) -> None:
    reply = decode_reply(_log(5).reply(applied, end))
    assert reply.position == applied + 1
    assert [entry.index for entry in reply.entries] == list(range(applied, end))


def test_trimming_keeps_what_the_slowest_rank_has_not_applied() -> None:
    log = _log(100)
    log.trim(20)
    assert log.first_position == 21
    assert [entry.index for entry in decode_reply(log.reply(20, 23)).entries] == [20, 21, 22]


def test_trimming_keeps_the_ring() -> None:
    log = _log(100)
    log.trim(100)
    assert (log.first_position, log.end_position) == (93, 100)
    log.extend([_record(100)])
    assert log.end_position == 101


def test_the_kept_entries_are_bounded_by_the_ring_and_its_stride() -> None:
    log = StageLog(ring_entries_max=8)
    sizes: list[int] = []
    for index in range(200):
        log.extend([_record(index)])
        log.trim(log.end_position)
        sizes.append(log.end_position - log.first_position + 1)
    assert max(sizes) <= 8 + 2
    kept = log.records(log.first_position, log.end_position)
    assert log.kept_bytes == sum(len(record.body) + len(record.entry) for record in kept)
    assert log.bytes_total > log.kept_bytes


def test_an_entry_that_is_gone_is_refused_with_the_oldest_kept() -> None:
    log = _log(100)
    log.trim(100)
    with pytest.raises(SessionError, match="position 92 is gone, the log starts at 93") as caught:
        log.reply(91, 100)
    assert caught.value.code is ErrorCode.FENCED


def test_a_lost_entry_breaks_log_positions_gapless() -> None:
    log = _log(5)
    del log._records[2]
    with pytest.raises(InvariantError) as caught:
        log.reply(0, 5)
    assert caught.value.name == "log.positions_gapless"
