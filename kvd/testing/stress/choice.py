"""Which of the free units are handed out: those that need no wait first, and then the lowest.

Semantics 8.6. What is open on a unit is the reference's word (`open_accesses`); which units are
ordered holes is the band's own, because units that were freed since the last batch ended are none.
"""

from collections.abc import Sequence

from kvd.alloc.band import Band
from kvd.alloc.signals import SignalKind
from kvd.price.geometry import BandKind
from kvd.testing.stress.broken import require
from kvd.testing.stress.contents import Indices
from kvd.testing.stress.oracle import Oracle
from kvd_proto.outcomes import NO_COLUMN, AdmitResult, Move, Outcome, TakeResult, Wait

COPY_WAIT, STEP_WAIT, NEVER = 1, 2, 4


def check_choice(oracle: Oracle, outcome: Outcome, columns: Sequence[Indices]) -> None:
    """Raise StressFailure unless a take took the units that it should.

    A take that moves or waits is passed over: what was open on units changed with it.
    """
    result = outcome.result
    if not isinstance(result, AdmitResult | TakeResult):
        return
    if any(isinstance(effect, Move | Wait) for segment in outcome.segments for effect in segment):
        return
    for index, column in enumerate(result.physical):
        if column != NO_COLUMN:
            _check_band(oracle, index, columns[column].tolist())


def _check_band(oracle: Oracle, index: int, taken: Sequence[int]) -> None:
    band = oracle.engine.chain.bands[index]
    keys = [_key(oracle, band, index, unit) for unit in taken]
    name = band.geometry.name
    require(
        keys == sorted(keys), "choice", f"band {name} handed out {taken}, in an order of its own"
    )
    left = min(
        (_key(oracle, band, index, unit) for unit in band.ordered_holes().tolist()), default=None
    )
    require(
        left is None or keys[-1] < left,
        "choice",
        f"band {name} handed out {taken} and left one that comes before: {keys[-1]}, {left}",
    )


def _key(oracle: Oracle, band: Band, index: int, unit: int) -> tuple[int, int]:
    """Return what orders units for whoever writes them next: what is waited for, and the place."""
    bits = 0
    grains = oracle.units.grains(index, [unit])
    for (_, signal), used in oracle.units.accesses.uses.items():
        if not grains.isdisjoint(used):
            if signal.kind is SignalKind.TRANSFER:
                bits |= NEVER
            else:
                bits |= STEP_WAIT if signal.kind is SignalKind.STEP else COPY_WAIT
    place = -unit if band.geometry.kind is BandKind.GROW_DOWN else unit
    return bits, place
