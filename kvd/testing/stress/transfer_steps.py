"""Steps on transfers: what each of them asks, picked among who is there."""

import numpy as np

from kvd.testing.stress.contents import Indices
from kvd.testing.stress.model import Request, Transfer, Value
from kvd.testing.stress.program import CancelHold, Hold, Post, Publish
from kvd.testing.stress.scheduler import Scheduler, Touch

TRANSFER_UNITS_MAX = 6
_NONE: Indices = np.zeros(0, dtype=np.int64)


def _owner(scheduler: Scheduler, number: int, *, value: bool) -> Request | Value | None:
    model = scheduler.model
    return model.values.get(number) if value else model.requests.get(number)


def _chosen(
    scheduler: Scheduler, index: int, *, value: bool, sends: bool
) -> Request | Value | None:
    """Return whose units are to be sent or received; None if nobody's can be."""
    model = scheduler.model
    owners = [*model.values.values()] if value else [*model.requests.values()]
    fitting = [owner.number for owner in owners if _fits(scheduler, owner, sends=sends)]
    kind = "value" if value else "request"
    for number in scheduler.pick(fitting, index):
        scheduler.calm(kind, [number], Touch.CHANGES)
        owner = _owner(scheduler, number, value=value)
        if owner is not None and _fits(scheduler, owner, sends=sends):
            return owner
    return None


def _fits(scheduler: Scheduler, owner: Request | Value, *, sends: bool) -> bool:
    if any(transfer.writes for transfer in owner.transfers.values()):
        return False
    if isinstance(owner, Value) and (owner.loading or (sends and owner.loads)):
        return False
    if not sends:
        return True
    model = scheduler.model
    if any(copy.loads and copy.value not in model.values for copy in model.copies.values()):
        return False  # a load goes on whose value was given up: nobody knows whose units it has
    unknown_over = model.unknown_step <= scheduler.processed_count
    return unknown_over and scheduler.may_be_told(owner)


def _units(
    scheduler: Scheduler, owner: Request | Value, band: int, count: int, *, sends: bool
) -> list[Indices]:
    """Return units of each band, or of one of them."""
    model = scheduler.model
    ids = model.ids_of(owner)
    if sends:
        ids = model.readable_ids_of(owner, processed_count=scheduler.processed_count)
    most = count % TRANSFER_UNITS_MAX + 1
    only = band % (len(ids) + 1)
    return [
        virtual[:most] if only in (0, index + 1) else _NONE for index, virtual in enumerate(ids)
    ]


def _propose(
    scheduler: Scheduler, owner: Request | Value, virtual: list[Indices], *, writes: bool
) -> tuple[int, dict[str, Indices]]:
    model = scheduler.model
    number = model.take_number("transfer")
    model.proposed_transfers[number] = Transfer(number, owner, virtual, writes=writes)
    scheduler.batch.names_units = True
    scheduler.touch(_kind(owner), [owner.number], Touch.CHANGES)
    names = [band.name for band in scheduler.contents.bands]
    return number, dict(zip(names, virtual, strict=True))


def hold(scheduler: Scheduler, step: Hold) -> bool:
    """Announce a receive."""
    owner = _chosen(scheduler, step.pick_index, value=step.value, sends=False)
    if owner is None:
        return False
    virtual = _units(scheduler, owner, step.band, step.count, sends=False)
    if not any(ids.size for ids in virtual) or not scheduler.has_network_streams(virtual):
        return False
    number, units = _propose(scheduler, owner, virtual, writes=True)
    scheduler.ask(lambda batch: batch.hold(number, units))
    return True


def post(scheduler: Scheduler, step: Post) -> bool:
    """Let a peer read."""
    owner = _chosen(scheduler, step.pick_index, value=not step.request, sends=True)
    if owner is None:
        return False
    virtual = _units(scheduler, owner, step.band, step.count, sends=True)
    if not any(ids.size for ids in virtual) or not scheduler.has_network_streams(virtual):
        return False
    number, units = _propose(scheduler, owner, virtual, writes=False)
    scheduler.ask(lambda batch: batch.post(number, units))
    return True


def _kind(owner: Request | Value) -> str:
    return "value" if isinstance(owner, Value) else "request"


def _held(scheduler: Scheduler, index: int) -> Transfer | None:
    """Return a held transfer, picked; whatever touches its owner is sent before."""
    transfers = scheduler.model.transfers
    chosen = scheduler.pick_one([one for one in transfers.values() if not one.published], index)
    if chosen is None:
        return None
    scheduler.calm(_kind(chosen.owner), [chosen.owner.number], Touch.CHANGES)
    return None if chosen.published or chosen.number not in transfers else chosen


def publish(scheduler: Scheduler, step: Publish) -> bool:
    """Tell a peer where to write, once no forward is at it."""
    transfer = _held(scheduler, step.pick_index)
    if transfer is None or not scheduler.may_be_told(transfer.owner):
        return False
    scheduler.ask(lambda batch: batch.publish(transfer.number))
    scheduler.touch(_kind(transfer.owner), [transfer.owner.number], Touch.CHANGES)
    scheduler.batch.names_units = True
    return True


def cancel_hold(scheduler: Scheduler, step: CancelHold) -> bool:
    """Give up a held transfer."""
    transfer = _held(scheduler, step.pick_index)
    if transfer is None:
        return False
    scheduler.ask(lambda batch: batch.cancel_hold(transfer.number))
    scheduler.touch(_kind(transfer.owner), [transfer.owner.number], Touch.CHANGES)
    return True
