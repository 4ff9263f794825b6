"""What an outcome tells about units, names, rows and slots, taken apart for whoever compares it."""

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from kvd.alloc.signals import Signal, copy_signal, step_signal
from kvd_proto.outcomes import (
    NO_COLUMN,
    AnyEffect,
    ClearSlots,
    Column,
    Copy,
    CopyStream,
    Move,
    Outcome,
    ResetRows,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
    ZeroSink,
)


class ToldMove(NamedTuple):
    """Units of a band that moved: names, old places, new places."""

    band: int
    names: list[int]
    sources: list[int]
    destinations: list[int]


class ToldNames(NamedTuple):
    """Names of a band, and the units that they mean from now on."""

    band: int
    names: list[int]
    units: list[int]


class ToldCopy(NamedTuple):
    """A band's part of a copy."""

    copy: int
    stream: CopyStream
    band: int
    units: list[int]


@dataclass(slots=True)
class Told:
    """The effects of one outcome by kind, each kind in order."""

    columns: list[list[int]]
    waits: list[Signal] = field(default_factory=list[Signal])
    unnamed: list[tuple[int, list[int]]] = field(default_factory=list[tuple[int, list[int]]])
    """Bands and names of theirs that read as the sink from now on."""
    moves: list[ToldMove] = field(default_factory=list[ToldMove])
    named: list[ToldNames] = field(default_factory=list[ToldNames])
    zeroed: list[tuple[int, list[int]]] = field(default_factory=list[tuple[int, list[int]]])
    rows: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Row, place and page."""
    slots: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Row and slot, 0 for none."""
    cleared_slots: list[int] = field(default_factory=list[int])
    reset_rows: list[int] = field(default_factory=list[int])
    copies: list[ToldCopy] = field(default_factory=list[ToldCopy])
    zeroes_sink: bool = False

    def column(self, column: Column) -> list[int]:
        """Return a column; none at all is an empty one."""
        return [] if column == NO_COLUMN else self.columns[column]

    def unnamed_of(self, band: int) -> list[int]:
        """Return all names of a band that read as the sink from now on, ascending."""
        return sorted(name for index, names in self.unnamed if index == band for name in names)


def columns_of(outcome: Outcome) -> list[list[int]]:
    """Return an outcome's columns."""
    values = np.frombuffer(outcome.columns, dtype="<i4").tolist()
    ends = accumulate(outcome.lengths, initial=0)
    return [values[start:end] for start, end in pairwise(ends)]


def told_by(outcome: Outcome) -> Told:
    """Take an outcome apart."""
    told = Told(columns_of(outcome))
    for segment in outcome.segments:
        for effect in segment:
            _tell(told, effect)
    return told


def _tell(told: Told, effect: AnyEffect) -> None:
    column = told.column
    match effect:
        case Wait():
            told.waits.append(step_signal(effect.step) if effect.step else copy_signal(effect.copy))
        case Move():
            # The names follow as the next effect's.
            sources, destinations = column(effect.sources), column(effect.destinations)
            told.moves.append(ToldMove(effect.band, [], sources, destinations))
        case WriteMap():
            _tell_names(told, effect)
        case Zero():
            told.zeroed.append((effect.band, column(effect.units)))
        case WriteRows():
            parts = (column(effect.rows), column(effect.places), column(effect.virtual))
            told.rows += zip(*parts, strict=True)
        case WriteSlots():
            told.slots += zip(column(effect.rows), column(effect.virtual), strict=True)
        case ClearSlots():
            told.cleared_slots += column(effect.units)
        case ResetRows():
            told.reset_rows += column(effect.rows)
        case Copy():
            units = column(effect.units)
            told.copies.append(ToldCopy(effect.copy, effect.stream, effect.band, units))
        case ZeroSink():
            told.zeroes_sink = True


def _tell_names(told: Told, effect: WriteMap) -> None:
    names = told.column(effect.virtual)
    if effect.physical == NO_COLUMN:
        told.unnamed.append((effect.band, names))
        return
    units = told.column(effect.physical)
    if told.moves and not told.moves[-1].names and told.moves[-1].band == effect.band:
        told.moves[-1].names.extend(names)
        return
    told.named.append(ToldNames(effect.band, names, units))
