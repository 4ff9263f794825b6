"""What a careful scheduler does not ask for: units are read, told or held while somebody is at it.

Unlike `misuse`, some of it may be served, because kvd knows more than the scheduler: a step that
the allocator's stream was made to wait for is no obstacle any more. What is turned down leaves no
trace, and what is served is judged like everything else.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import numpy as np

from kvd.testing.stress.contents import Indices
from kvd.testing.stress.model import Copy, Request, Transfer, Value
from kvd.testing.stress.scheduler import Scheduler
from kvd.testing.stress.script import Ask

Dare: TypeAlias = Callable[[Scheduler, int], Ask | None]
"""Returns something daring to ask for, picked; None where nobody is at anything."""

UNITS_MAX: Final = 6
_NONE: Final[Indices] = np.zeros(0, dtype=np.int64)


def _owners(scheduler: Scheduler) -> list[Request | Value]:
    model = scheduler.model
    return [*model.values.values(), *model.requests.values()]


def _is_written(scheduler: Scheduler, owner: Request | Value) -> bool:
    """Return whether a step, a load or a peer may be writing somebody, or is still to clear it."""
    model = scheduler.model
    return (
        not scheduler.may_be_told(owner)
        or model.has_uncleared(owner)
        or model.unknown_step > model.processed_count
        or any(transfer.writes for transfer in owner.transfers.values())
        or (isinstance(owner, Value) and bool(owner.loads))
    )


def _units_of(scheduler: Scheduler, owner: Request | Value, pick: int) -> list[Indices]:
    """Return units of somebody, of each band the last ones."""
    most = pick % UNITS_MAX + 1
    return [ids[-most:] if ids.size else _NONE for ids in scheduler.model.ids_of(owner)]


def _post(scheduler: Scheduler, pick: int) -> Ask | None:
    """Send what somebody may be writing."""
    return _transfer(scheduler, pick, _written(scheduler), writes=False)


def _hold(scheduler: Scheduler, pick: int) -> Ask | None:
    """Hold what another transfer or a load holds."""
    return _transfer(scheduler, pick, _written(scheduler), writes=True)


def _written(scheduler: Scheduler) -> list[Request | Value]:
    return [owner for owner in _owners(scheduler) if _is_written(scheduler, owner)]


def _transfer(
    scheduler: Scheduler,
    pick: int,
    owners: Iterable[Request | Value],
    *,
    writes: bool,
    only: int | None = None,
) -> Ask | None:
    """Name the last units of somebody, in one band only if asked so."""
    for owner in scheduler.pick(list(owners), pick):
        virtual = [
            ids if only in (None, index) else _NONE
            for index, ids in enumerate(_units_of(scheduler, owner, pick))
        ]
        if not any(ids.size for ids in virtual) or not scheduler.has_network_streams(virtual):
            return None
        number = scheduler.model.take_number("transfer")
        scheduler.model.proposed_transfers[number] = Transfer(number, owner, virtual, writes=writes)
        names = [band.name for band in scheduler.contents.bands]
        units = dict(zip(names, virtual, strict=True))
        if writes:
            return lambda batch: batch.hold(number, units)
        return lambda batch: batch.post(number, units)
    return None


def _publish(scheduler: Scheduler, pick: int) -> Ask | None:
    """Tell a peer to write what the one step in flight is known to write."""
    held = [
        one.number
        for one in scheduler.model.transfers.values()
        if not one.published and _is_written_by_the_step_in_flight(scheduler, one)
    ]
    for number in scheduler.pick(held, pick):
        return lambda batch: batch.publish(number)
    return None


def _is_written_by_the_step_in_flight(scheduler: Scheduler, transfer: Transfer) -> bool:
    model, owner, step = scheduler.model, transfer.owner, scheduler.launched_count
    if not isinstance(owner, Request) or scheduler.launching:
        return False
    if not owner.step == step == model.processed_count + 1 or model.unknown_step == step:
        return False
    if owner.written_tokens <= owner.computed_tokens:
        return False
    place = (owner.written_tokens - 1) // scheduler.contents.plan.page_tokens
    page = model.pages_of(owner)[place]
    return bool((transfer.virtual[scheduler.contents.owner.index] == page).any())


def _backup(scheduler: Scheduler, pick: int) -> Ask | None:
    """Copy what a peer or a load is to write, or a launch is to clear."""
    if not scheduler.limits.copies:
        return None
    model, bands = scheduler.model, scheduler.contents.bands
    writing = [
        value
        for value in model.values.values()
        if value.loads
        or value.slot in model.contents.uncleared
        or any(transfer.writes for transfer in value.transfers.values())
    ]
    for value in scheduler.pick(writing, pick):
        number = model.take_number("copy")
        copy = Copy(number, value.number, loads=False)
        for band, virtual in zip(bands, _units_of(scheduler, value, pick), strict=True):
            places = scheduler.take_places(number, band.index, virtual.size)
            if virtual.size and places is not None:
                copy.named[band.index], copy.places[band.index] = virtual, places
        if not copy.named:
            return None
        model.proposed_copies[number] = copy
        named = {bands[index].name: ids for index, ids in copy.named.items()}
        places_of = {bands[index].name: places for index, places in copy.places.items()}
        return lambda batch: batch.backup(number, named, places_of)
    return None


DARES: Final[tuple[Dare, ...]] = (_post, _hold, _publish, _backup)


# ---- what only meetings bring about -------------------------------------------------------------


def _send_slot(scheduler: Scheduler, pick: int) -> Ask | None:
    """Send a slot alone that a launch is to clear, or that a step in flight clears."""
    state, model = scheduler.contents.state, scheduler.model
    if state is None:
        return None
    owners = [owner for owner in _owners(scheduler) if model.has_uncleared(owner)]
    return _transfer(scheduler, pick, owners, writes=False, only=state.index)


CLOSE_DARES: Final[tuple[Dare, ...]] = (_send_slot,)


def forget_proposals(scheduler: Scheduler) -> None:
    """Forget what was asked for and turned down."""
    scheduler.model.proposed_transfers.clear()
    scheduler.model.proposed_copies.clear()
