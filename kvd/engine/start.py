"""What an incarnation starts from: with the operations behind it, all that its decisions rest on.

A trace begins with it (semantics 11.5, ``head``), and whoever has it builds the same engine again,
on any machine and without a device.
"""

from typing import Literal

import msgspec
import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.checks import CheckLevel
from kvd.alloc.values import Value
from kvd.engine.legacy import Legacy
from kvd.engine.shape import StageShape
from kvd.engine.stage import StageEngine


class SurvivingValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value of the incarnation before; ids in the order of its sequence."""

    value_id: int
    pages: tuple[int, ...]
    bound: tuple[tuple[int, ...], ...]
    """Per band in chain order; empty but for windows: the pages that have a unit there."""
    slot_index: int = 0
    """Its virtual slot; 0 for none."""


class Survivors(msgspec.Struct, frozen=True, kw_only=True):
    """All values that survived, and where their units lie."""

    highest_value_id: int
    """The highest number that any value ever had."""
    values: tuple[SurvivingValue, ...]
    physical: tuple[tuple[int, ...], ...]
    """Per band: the units of the values' ids, value by value."""


class IncarnationStart(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an incarnation's first decision may depend on."""

    incarnation: int
    ranks: tuple[int, ...]
    check_level: Literal["off", "warn", "strict"]
    idle_moves_max: int
    batch_moves_max: int
    position: int
    """End of the log before; the first entry stands behind it."""
    shape: StageShape
    survivors: Survivors | None = None

    @property
    def level(self) -> CheckLevel:
        """Return the level of checks; it changes no decision, only what is noticed."""
        return CheckLevel[self.check_level.upper()]

    def legacy(self) -> Legacy:
        """Return what an incarnation that starts here takes over."""
        if self.survivors is None:
            return Legacy(self.position)
        engine = StageEngine(
            self.shape,
            level=self.level,
            idle_moves_max=self.idle_moves_max,
            batch_moves_max=self.batch_moves_max,
        )
        _restore(engine, self.survivors)
        return Legacy(self.position, engine)


def start_of(
    engine: StageEngine, *, number: int, ranks: tuple[int, ...], position: int, legacy: Legacy
) -> IncarnationStart:
    """Return what an incarnation starts from; nothing of it was decided yet."""
    return IncarnationStart(
        incarnation=number,
        ranks=ranks,
        check_level=engine.monitor.level.word,
        idle_moves_max=engine.idle_moves_max,
        batch_moves_max=engine.batch_moves_max,
        position=position,
        shape=engine.shape,
        survivors=None if legacy.engine is None else survivors_of(engine),
    )


def survivors_of(engine: StageEngine) -> Survivors:
    """Return the values of an engine that holds nothing else."""
    table = engine.requests.values
    bands = engine.chain.bands
    return Survivors(
        highest_value_id=table.numbers.highest,
        values=tuple(
            SurvivingValue(
                value_id=number,
                pages=_ints(value.pages),
                bound=tuple(
                    _ints(value.bound[index]) if index in value.bound else ()
                    for index in range(len(bands))
                ),
                slot_index=value.slot,
            )
            for number, value in table.of_number.items()
        ),
        physical=tuple(_ints(band.physical(table.ids(index))) for index, band in enumerate(bands)),
    )


def _restore(engine: StageEngine, survivors: Survivors) -> None:
    windows = engine.chain.window_indices
    engine.requests.values.restore(
        survivors.highest_value_id,
        {
            value.value_id: Value(
                pages=_units(value.pages),
                bound={index: _units(value.bound[index]) for index in windows},
                slot=value.slot_index,
                written_step=0,
            )
            for value in survivors.values
        },
        [_units(units) for units in survivors.physical],
    )


def _ints(units: Units) -> tuple[int, ...]:
    return tuple(units.tolist())


def _units(ints: tuple[int, ...]) -> Units:
    return np.array(ints, dtype=np.int64)
