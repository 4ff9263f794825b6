"""Which rank said what about copies and transfers, and what is released for it."""

import pytest

from kvd.engine.endings import Endings
from kvd.engine.stage import StageEngine
from kvd.errors import OperationError
from kvd_proto.operations import (
    CopyEnded,
    LoadReserve,
    Publish,
    Released,
    TransferEnded,
)
from tests.stateful.values import FULL, backup, engine_with_value, held, hold, post

RANKS = (0, 1)


def _endings(*, backups: int = 0, sends: int = 0) -> tuple[StageEngine, Endings]:
    engine = engine_with_value()
    for number in range(1, backups + 1):
        engine.decide(0, backup(number, FULL, [number]))
    for number in range(1, sends + 1):
        engine.decide(0, post(number, FULL, [number]))
    return engine, Endings(RANKS, engine.uses.copies, engine.uses.transfers)


@pytest.mark.case("96")
def test_a_copy_is_released_once_the_last_rank_has_spoken() -> None:
    _, endings = _endings(backups=1)
    assert endings.copy_ended(1, CopyEnded(1))
    assert not endings.is_due
    assert endings.take_due() is None
    assert endings.copy_ended(0, CopyEnded(1))
    assert endings.is_due
    assert endings.take_due() == Released(copies=(1,))
    assert not endings.is_due


@pytest.mark.case("96")
def test_copies_are_released_in_the_order_in_which_their_last_rank_spoke() -> None:
    _, endings = _endings(backups=3)
    for rank, number in ((0, 1), (0, 2), (0, 3), (1, 3), (1, 1)):
        endings.copy_ended(rank, CopyEnded(number))
    assert endings.take_due() == Released(copies=(3, 1))


def test_a_copy_that_failed_anywhere_failed() -> None:
    _, endings = _endings(backups=2)
    for number in (1, 2):
        endings.copy_ended(0, CopyEnded(number, failed=number == 2))
        endings.copy_ended(1, CopyEnded(number))
    assert endings.take_due() == Released(copies=(1, 2), failed_copies=(2,))


def test_a_word_that_is_repeated_or_late_is_no_news() -> None:
    engine, endings = _endings(backups=1, sends=1)
    assert endings.copy_ended(0, CopyEnded(1))
    assert not endings.copy_ended(0, CopyEnded(1))
    assert not endings.copy_ended(0, CopyEnded(1, failed=True))
    endings.copy_ended(1, CopyEnded(1))
    for rank in RANKS:
        endings.transfer_ended(rank, TransferEnded(1))
    released = endings.take_due()
    assert released is not None
    assert released == Released(copies=(1,), transfers=(1,))
    engine.release(released)
    assert not endings.copy_ended(0, CopyEnded(1))
    assert not endings.transfer_ended(0, TransferEnded(1, failed=True, proven=False))


@pytest.mark.parametrize("number", [0, -1, 2, 3])
def test_a_word_about_a_copy_that_nobody_submitted_is_refused(number: int) -> None:
    engine, endings = _endings(backups=1)
    engine.decide(0, LoadReserve(3, 1, (0, 1, 0, 0)))
    if number == 2:
        assert not endings.copy_ended(0, CopyEnded(number))  # a gap: nobody can tell any more
        return
    with pytest.raises(OperationError, match=f"copy {number} was never submitted"):
        endings.copy_ended(0, CopyEnded(number))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_word_about_a_transfer_that_no_peer_knows_is_refused(number: int) -> None:
    engine, endings = _endings()
    engine.decide(0, hold(1, FULL, held(engine, 2, FULL)))
    with pytest.raises(OperationError, match=f"transfer {number} was never posted or published"):
        endings.transfer_ended(0, TransferEnded(number))


@pytest.mark.case("101")
def test_a_transfer_that_failed_is_over_where_its_end_is_proven() -> None:
    _, endings = _endings(sends=1)
    for rank in RANKS:
        endings.transfer_ended(rank, TransferEnded(1, failed=True))
    assert endings.take_due() == Released(transfers=(1,))


def test_a_transfer_that_failed_without_proof_is_in_quarantine_until_every_rank_has_it() -> None:
    engine, endings = _endings(sends=1)
    for rank in RANKS:
        assert endings.transfer_ended(rank, TransferEnded(1, failed=True, proven=False))
    quarantined = endings.take_due()
    assert quarantined is not None
    assert quarantined == Released(quarantined=(1,))
    engine.release(quarantined)
    assert endings.transfer_ended(0, TransferEnded(1, failed=True))
    assert endings.take_due() is None
    assert not endings.transfer_ended(0, TransferEnded(1, failed=True, proven=False))
    assert endings.transfer_ended(1, TransferEnded(1, failed=True))
    assert endings.take_due() == Released(transfers=(1,))


def test_proof_that_comes_before_the_gate_spares_the_quarantine() -> None:
    _, endings = _endings(sends=1)
    endings.transfer_ended(0, TransferEnded(1, failed=True, proven=False))
    endings.transfer_ended(1, TransferEnded(1))
    assert endings.is_due
    endings.transfer_ended(0, TransferEnded(1, failed=True))
    assert endings.take_due() == Released(transfers=(1,))


def test_a_published_receive_ends_as_a_send_does() -> None:
    engine, endings = _endings()
    engine.decide(0, hold(1, FULL, held(engine, 2, FULL)))
    engine.decide(0, Publish(1))
    for rank in RANKS:
        assert endings.transfer_ended(rank, TransferEnded(1))
    assert endings.take_due() == Released(transfers=(1,))
