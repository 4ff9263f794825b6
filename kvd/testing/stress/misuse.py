"""Wrong uses: each has to be turned down, without a trace, for what it is."""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from kvd.testing.stress.scheduler import Scheduler
from kvd.testing.stress.script import Ask
from kvd_client.calls import Call
from kvd_proto.codec import encode
from kvd_proto.operations import Processed

MakeMisuse: TypeAlias = Callable[[Scheduler, int], Ask | None]
"""Returns something wrong to ask for, picked; None where there is nobody to do it to."""

UNUSED_NUMBER: Final = 1 << 40
"""A number that nothing has in any run."""


def _free_of_nobody(scheduler: Scheduler, pick: int) -> Ask | None:
    return lambda batch: batch.free([UNUSED_NUMBER + pick])


def _take_of_nobody(scheduler: Scheduler, pick: int) -> Ask | None:
    known = [request.number for request in scheduler.pick(scheduler.running(), pick)]
    return lambda batch: batch.take([*known, UNUSED_NUMBER], 1)


def _take_past_context(scheduler: Scheduler, pick: int) -> Ask | None:
    for request in scheduler.pick(scheduler.running(), pick):
        tokens = scheduler.limits.context_tokens - request.tokens + 1
        return lambda batch: batch.take([request.number], tokens)
    return None


def _advance_past_taken(scheduler: Scheduler, pick: int) -> Ask | None:
    for request in scheduler.pick(scheduler.running(), pick):
        tokens = request.tokens - request.computed_tokens + 1
        return lambda batch: batch.advance([request.number], tokens)
    return None


def _admit_again(scheduler: Scheduler, pick: int) -> Ask | None:
    for request in scheduler.pick(scheduler.running(), pick):
        return lambda batch: batch.admit([request.number], prompt_tokens=[1], new_tokens_max=[1])
    return None


def _insert_twice(scheduler: Scheduler, pick: int) -> Ask | None:
    values = list(scheduler.model.values)
    for request in scheduler.pick(scheduler.running(), pick):
        for value in scheduler.pick(values, pick):
            return lambda batch: batch.insert(value, request.number)
    return None


def _evict_twice(scheduler: Scheduler, pick: int) -> Ask | None:
    for value in scheduler.pick(list(scheduler.model.values), pick):
        return lambda batch: batch.evict([value, value])
    return None


def _evict_under_load(scheduler: Scheduler, pick: int) -> Ask | None:
    loading = [value.number for value in scheduler.model.values.values() if value.loading]
    for value in scheduler.pick(loading, pick):
        return lambda batch: batch.evict([value])
    return None


def _end_under_receive(scheduler: Scheduler, pick: int) -> Ask | None:
    held = [one.number for one in scheduler.running() if not scheduler.may_end(one)]
    for number in scheduler.pick(held, pick):
        return lambda batch: batch.free([number])
    return None


def _submit_nameless(scheduler: Scheduler, pick: int) -> Ask | None:
    loads = [one for one in scheduler.model.copies.values() if one.loads and not one.submitted]
    for load in scheduler.pick(loads, pick):
        if sum(load.units) > sum(ids.size for ids in load.named.values()):
            return lambda batch: batch.load_submit(load.number, {})
    return None


def _name_strange_page(scheduler: Scheduler, pick: int) -> Ask | None:
    loads = [one for one in scheduler.model.copies.values() if one.loads and not one.submitted]
    for load in scheduler.pick(loads, pick):
        band = scheduler.pick(scheduler.contents.windows, pick)[0]
        return lambda batch: batch.load_name(load.number, band.name, [UNUSED_NUMBER])
    return None


def _send_unbound(scheduler: Scheduler, pick: int) -> Ask | None:
    owner = scheduler.contents.owner
    free = (owner.places[1:] == 0).nonzero()[0] + 1
    for page in scheduler.pick(free.tolist(), pick):
        number = scheduler.model.take_number("transfer")
        return lambda batch: batch.post(number, {owner.name: [page]})
    return None


def _publish_twice(scheduler: Scheduler, pick: int) -> Ask | None:
    known = [one.number for one in scheduler.model.transfers.values() if one.published]
    for number in scheduler.pick(known, pick):
        return lambda batch: batch.publish(number)
    return None


def _evict_under_receive(scheduler: Scheduler, pick: int) -> Ask | None:
    held = [
        value.number
        for value in scheduler.model.values.values()
        if not value.loading and not scheduler.may_end(value)
    ]
    for number in scheduler.pick(held, pick):
        return lambda batch: batch.evict([number])
    return None


def _retract_under_transfer(scheduler: Scheduler, pick: int) -> Ask | None:
    """Name a victim whose last page a peer has."""
    model = scheduler.model
    page_tokens = scheduler.contents.plan.page_tokens
    victims = [
        request.number
        for request in scheduler.running()
        for transfer in request.transfers.values()
        if np.isin(transfer.virtual[scheduler.contents.owner.index], model.pages_of(request)).any()
    ]
    takers = [
        request.number
        for request in scheduler.running()
        if request.tokens + page_tokens <= scheduler.limits.context_tokens
    ]
    for victim in scheduler.pick(victims, pick):
        for taker in scheduler.pick([one for one in takers if one != victim], pick):
            return lambda batch: batch.take([taker], page_tokens, victims=[victim])
    return None


def _advance_one_too_far(scheduler: Scheduler, pick: int) -> Ask | None:
    """Name somebody who may advance beside somebody who may not."""
    calm = [one for one in scheduler.running() if scheduler.may_end(one)]
    able = [one.number for one in calm if one.tokens > one.computed_tokens]
    for number in scheduler.pick(able, pick):
        for request in scheduler.pick([one for one in calm if one.number != number], pick):
            tokens = [1, request.tokens - request.computed_tokens + 1]
            return lambda batch: batch.advance([number, request.number], tokens)
    return None


def _stand_and_leave(scheduler: Scheduler, pick: int) -> Ask | None:
    """Have somebody leave the standing set in an operation that is wrong."""
    for leaving, staying in zip(
        scheduler.pick(list(scheduler.model.standing), pick),
        scheduler.pick(list(scheduler.model.standing), pick + 1),
        strict=True,
    ):
        if leaving != staying:
            return lambda batch: batch.standing(add=[staying], remove=[leaving])
    return None


def _stand_twice(scheduler: Scheduler, pick: int) -> Ask | None:
    for number in scheduler.pick(list(scheduler.model.standing), pick):
        return lambda batch: batch.standing(add=[number])
    return None


MISUSES: Final[tuple[MakeMisuse, ...]] = (
    _free_of_nobody,
    _take_of_nobody,
    _take_past_context,
    _advance_past_taken,
    _admit_again,
    _insert_twice,
    _evict_twice,
    _evict_under_load,
    _end_under_receive,
    _submit_nameless,
    _name_strange_page,
    _send_unbound,
    _publish_twice,
    _stand_twice,
    _stand_and_leave,
    _advance_one_too_far,
    _evict_under_receive,
    _retract_under_transfer,
)


# ---- what only meetings bring about -------------------------------------------------------------


def _report_out_of_order(scheduler: Scheduler, pick: int) -> Ask | None:
    """Report a step that is not the oldest in flight, which a client would not let pass."""
    if scheduler.launched_count == scheduler.model.processed_count:
        return None
    beside = (-1, 0, 2, 3)[pick % 4]
    operation = Processed(max(0, scheduler.model.processed_count + beside))
    return lambda batch: batch.calls.append(Call(operation, encode(operation)))


def _read_unloaded(scheduler: Scheduler, pick: int) -> Ask | None:
    """Read, send or hold pages of a band that a load has all named, and was not submitted for."""
    model = scheduler.model
    loads = [one for one in model.copies.values() if one.loads and not one.submitted]
    found = [
        (scheduler.contents.bands[index].name, ids)
        for load in loads
        for index, ids in load.named.items()
        if ids.size and ids.size == load.units[index]
    ]
    for name, ids in scheduler.pick(found, pick):
        match pick % 3 if scheduler.limits.copies else pick % 2:
            case 0:
                number = model.take_number("transfer")
                return lambda batch: batch.post(number, {name: ids})
            case 1:
                number = model.take_number("transfer")
                return lambda batch: batch.hold(number, {name: ids})
            case _:
                number = model.take_number("copy")
                places = np.arange(ids.size)
                return lambda batch: batch.backup(number, {name: ids}, {name: places})
    return None


CLOSE_MISUSES: Final[tuple[MakeMisuse, ...]] = (_report_out_of_order, _read_unloaded)
"""Wrong in places that hardly any run comes to by itself."""
FIRST_CLOSE_INDEX: Final = 64
"""The first kind index that means one of them; none that is drawn is as high."""
