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
    in_place = plan(snapshot, demand_units, Step.NO_MOVE, Tier.STREAM) if allowed else None
    rearranged = first_plan(snapshot, demand_units) if allowed else None
    # Nothing is pending without overlap, and nothing is cached yet: settling and eviction cannot
    # give anything back, so their answers are those of the step before.
    layouts = (in_place, in_place, rearranged, rearranged)
    return tuple(
        _step(name, snapshot, layout) for name, layout in zip(STEP_NAMES, layouts, strict=True)
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
