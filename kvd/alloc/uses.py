"""The words of the ledger: kinds of use, what each is to whoever comes next, what is told of it."""

from collections.abc import Container, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvd.alloc.clearance import CLOSED, WAITS, Cell, Hazard, Writer
from kvd.alloc.signals import Signal, SignalKind
from kvd.alloc.unit_sets import NONE, Units, union, without
from kvd.price.search import Span


class UseKind(StrEnum):
    """What is done to the units of a record."""

    FORWARD_WRITE = "forward write"
    VACATED_READ = "vacated read"
    """Its step or transfer may still touch units that nobody owns any more."""
    COPY_READ = "copy read"
    COPY_WRITE = "copy write"
    LOAD_RESERVATION = "load reservation"
    NETWORK_SEND = "network send"
    NETWORK_RECEIVE = "network receive"
    RECEIVE_HOLD = "receive hold"


HAZARD_OF = {
    UseKind.FORWARD_WRITE: Hazard.LIVE_WRITE,
    UseKind.VACATED_READ: Hazard.VACATED_READ,
    UseKind.COPY_READ: Hazard.COPY_READ,
    UseKind.COPY_WRITE: Hazard.COPY_WRITE,
    UseKind.LOAD_RESERVATION: Hazard.RESERVATION,
    UseKind.NETWORK_SEND: Hazard.NETWORK_SEND,
    UseKind.NETWORK_RECEIVE: Hazard.NETWORK_RECEIVE,
    UseKind.RECEIVE_HOLD: Hazard.HOLD,
}
"""What a use is to the next writer."""

WRITER_OF = {
    UseKind.COPY_WRITE: Writer.COPY_WRITE,
    UseKind.NETWORK_RECEIVE: Writer.NETWORK_RECEIVE,
    UseKind.LOAD_RESERVATION: Writer.RESERVATION,
    UseKind.RECEIVE_HOLD: Writer.HOLD,
}
"""What a use is to the next reader; forwards are asked about by write set, the rest only reads."""

OVER_WITH = {
    UseKind.FORWARD_WRITE: SignalKind.STEP,
    UseKind.VACATED_READ: SignalKind.STEP,
    UseKind.COPY_READ: SignalKind.COPY,
    UseKind.COPY_WRITE: SignalKind.COPY,
    UseKind.LOAD_RESERVATION: SignalKind.COPY,
    UseKind.NETWORK_SEND: SignalKind.TRANSFER,
    UseKind.NETWORK_RECEIVE: SignalKind.TRANSFER,
    UseKind.RECEIVE_HOLD: SignalKind.TRANSFER,
}
"""The kind of signal each use is opened with."""

COPIES = (UseKind.COPY_READ, UseKind.COPY_WRITE)
NETWORK = (UseKind.NETWORK_SEND, UseKind.NETWORK_RECEIVE)
PINS = (UseKind.LOAD_RESERVATION, UseKind.RECEIVE_HOLD)

NO_WAIT, COPY_WAIT, STEP_WAIT, NOT_CHOSEN = 0, 1, 2, 4
"""Bits of openness; as numbers they order a choice: unfenced first, behind a step last."""

Openness = NDArray[np.int8]


class UseRecord(NamedTuple):
    """One record as told to people; no count means every unit that is live."""

    kind: UseKind
    signal: Signal
    unit_count: int | None


class LeftUse(NamedTuple):
    """Units whose bytes left the band while a use of them is open."""

    units: Units
    kind: UseKind
    signal: Signal


class UsageFacts(NamedTuple):
    """What capacity answers depend on: where units are fixed, and which nobody can take yet."""

    hard_fixed: Span | None = None
    soft_fixed: Span | None = None
    vacated_forward: Units = NONE
    """Stream order alone makes holes of these."""
    vacated_network: Units = NONE
    """A transfer has to end first."""
    astray: Units = NONE
    """Vacated under a transfer of unknown end: no wait frees them; they count as live."""
    touched: Units = NONE
    """All that transfers of known end touch, live, pending or vacated."""
    lost: Units = NONE
    """All that transfers of unknown end may touch for ever."""


Uses: TypeAlias = Mapping[tuple[UseKind, Signal], Units]


def openness_bit(cell: Cell, signal: Signal) -> int:
    """Return the bit that a use sets on its units, 0 for a consumer that need not care."""
    if cell in CLOSED:
        return NOT_CHOSEN
    if cell in WAITS:
        return STEP_WAIT if signal.kind is SignalKind.STEP else COPY_WAIT
    return NO_WAIT


def facts_of(uses: Uses, astray: Container[Signal]) -> UsageFacts:
    """Return what capacity answers depend on; ``astray`` are the transfers of unknown end."""

    def units_of(*kinds: UseKind, lost: bool = False) -> Units:
        return union(
            [
                units
                for (kind, signal), units in uses.items()
                if kind in kinds and (signal in astray) is lost
            ]
        )

    lost = units_of(*NETWORK, lost=True)
    vacated = union([units for (kind, _), units in uses.items() if kind is UseKind.VACATED_READ])
    # A unit that a transfer holds back too is no room that stream order alone could make.
    held_back = union(
        [
            units
            for (kind, signal), units in uses.items()
            if kind is UseKind.VACATED_READ and signal.kind is SignalKind.TRANSFER
        ]
    )
    held = union([units for (kind, _), units in uses.items() if kind is UseKind.RECEIVE_HOLD])
    astray_units = vacated[np.isin(vacated, lost, assume_unique=True)]
    return UsageFacts(
        hard_fixed=_extent((units_of(UseKind.LOAD_RESERVATION), lost)),
        soft_fixed=_extent((without(units_of(*NETWORK), vacated), held)),
        vacated_forward=without(vacated, held_back),
        vacated_network=without(held_back, astray_units),
        touched=without(units_of(*NETWORK), lost),
        lost=lost,
        astray=astray_units,
    )


def _extent(sets: Iterable[Units]) -> Span | None:
    """Return the range from the first unit to behind the last, None if there is none."""
    ends = [(int(units[0]), int(units[-1]) + 1) for units in sets if units.size]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None
