"""What a use of units is over with: the end of a step, a copy or a transfer."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, NewType

SignalNumber = NewType("SignalNumber", int)


class SignalKind(StrEnum):
    """Whose end it is."""

    STEP = "step"
    """A forward: over for the allocator once it retires."""
    COPY = "copy"
    """A load or a backup, by the number its program gave it; A can wait for it."""
    TRANSFER = "transfer"
    """A network transfer, by the number its program gave it; only hosts can wait for it."""


class Signal(NamedTuple):
    """The end of one piece of work. Signals sort by kind (copies, steps, transfers), then number.

    Steps of one arena run in order, so the end of a step is the end of every earlier one.
    """

    kind: SignalKind
    number: SignalNumber


def step_signal(step: int) -> Signal:
    """Return the end of a step."""
    return Signal(SignalKind.STEP, SignalNumber(step))


def copy_signal(copy: int) -> Signal:
    """Return the end of a load or a backup."""
    return Signal(SignalKind.COPY, SignalNumber(copy))


def transfer_signal(transfer: int) -> Signal:
    """Return the end of a network transfer."""
    return Signal(SignalKind.TRANSFER, SignalNumber(transfer))


def distinct_waits(signals: Iterable[Signal]) -> tuple[Signal, ...]:
    """Return the signals to wait for, each once and sorted; of steps only the newest."""
    ordered = sorted(dict.fromkeys(signals))
    steps = [signal for signal in ordered if signal.kind is SignalKind.STEP]
    return tuple(
        signal for signal in ordered if signal.kind is not SignalKind.STEP or signal == steps[-1]
    )
