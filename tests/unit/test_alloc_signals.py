"""Signals, and which of them have to be waited for."""

from kvd.alloc.signals import (
    Signal,
    SignalKind,
    SignalNumber,
    copy_signal,
    distinct_waits,
    step_signal,
    transfer_signal,
)


def test_a_signal_is_its_kind_and_its_number() -> None:
    assert step_signal(3) == Signal(SignalKind.STEP, SignalNumber(3))
    assert copy_signal(3) == Signal(SignalKind.COPY, SignalNumber(3))
    assert transfer_signal(3) == Signal(SignalKind.TRANSFER, SignalNumber(3))
    assert len({step_signal(3), copy_signal(3), transfer_signal(3), step_signal(3)}) == 3


def test_signals_sort_by_kind_then_number() -> None:
    signals = [transfer_signal(1), step_signal(9), step_signal(10), copy_signal(20)]
    assert sorted(signals) == [copy_signal(20), step_signal(9), step_signal(10), transfer_signal(1)]


def test_each_copy_is_waited_once_and_of_the_steps_the_newest() -> None:
    signals = [
        transfer_signal(4),
        step_signal(7),
        copy_signal(2),
        step_signal(10),
        copy_signal(1),
        copy_signal(2),
        step_signal(9),
    ]
    assert distinct_waits(signals) == (
        copy_signal(1),
        copy_signal(2),
        step_signal(10),
        transfer_signal(4),
    )


def test_a_step_is_waited_for_whatever_stands_around_it() -> None:
    assert distinct_waits([step_signal(1)]) == (step_signal(1),)
    assert distinct_waits([step_signal(1), transfer_signal(1)]) == (
        step_signal(1),
        transfer_signal(1),
    )
    assert distinct_waits([]) == ()
