"""What would happen: whether a demand fits, after which rearrangement, and what that would move.

It is the search that decides takes, asked without taking. Where the daemon asks it, the snapshot is
its own; where an onlooker does, it was published.
"""

from typing import Final

from kvd.price.layout import Layout, Step, moved_units_max
from kvd.price.plans import feasible, first_plan, plan
from kvd.price.search import Units
from kvd.price.snapshot import ChainSnapshot, Tier
from kvd_proto.control import WhatIfStep

STEP_NAMES: Final = ("now", "settled", "relief", "eviction")
"""What may happen before the demand is taken, each on top of those before it."""


def with_promises(demand_units: Units, promised_units: Units) -> Units:
    """Return what has to have a place: the demand beyond everything that is promised."""
    return tuple([a + b for a, b in zip(demand_units, promised_units, strict=True)])


def what_if_steps(
    snapshot: ChainSnapshot, demand_units: Units, *, promised_units: Units
) -> tuple[WhatIfStep, ...]:
    """Return whether the demand fits as things lie, after settling, relief and eviction.

    ``snapshot`` holds no promises. They decide whether the demand may be taken at all and take no
    place before they are used, so they move nothing.
    """
    allowed = feasible(snapshot, with_promises(demand_units, promised_units))
    if not allowed:
        return never_steps()
    in_place = plan(_unsettled(snapshot), demand_units, Step.NO_MOVE, Tier.STREAM)
    settled = plan(snapshot, demand_units, Step.NO_MOVE, Tier.STREAM)
    rearranged = first_plan(snapshot, demand_units)
    # Which values would be evicted is their program's choice, so eviction gives nothing back here.
    layouts = (in_place, settled, rearranged, rearranged)
    return tuple(
        _step(name, snapshot, layout) for name, layout in zip(STEP_NAMES, layouts, strict=True)
    )


def _unsettled(snapshot: ChainSnapshot) -> ChainSnapshot:
    """Return the snapshot as it is for whoever waits for no step: what pends is in use."""
    return snapshot._replace(
        bands=tuple(
            [
                band._replace(live_units=band.live_units + band.pending_units, pending_units=0)
                for band in snapshot.bands
            ]
        )
    )


def never_steps() -> tuple[WhatIfStep, ...]:
    """Return the steps of a demand that is refused whatever the arena holds."""
    return tuple(WhatIfStep(name=name, fits=False) for name in STEP_NAMES)


def _step(name: str, snapshot: ChainSnapshot, layout: Layout | None) -> WhatIfStep:
    if layout is None:
        return WhatIfStep(name=name, fits=False)
    moved = moved_units_max(snapshot, layout)
    moved_bytes = sum(
        units * band.geometry.unit_bytes for units, band in zip(moved, snapshot.bands, strict=True)
    )
    return WhatIfStep(
        name=name,
        fits=True,
        layout=layout.step.value,
        moved_units=moved,
        moved_bytes=moved_bytes,
    )
