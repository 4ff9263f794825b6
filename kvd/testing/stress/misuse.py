"""Wrong uses: each has to be turned down, without a trace, for what it is."""

from collections.abc import Callable
from typing import Final, TypeAlias

from kvd.testing.stress.contents import Indices
from kvd.testing.stress.scheduler import Scheduler
from kvd.testing.stress.script import Ask

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
        return lambda batch: batch.take([request.number], scheduler.limits.context_tokens)
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
    free: Indices = (owner.places[1:] == 0).nonzero()[0] + 1
    for page in scheduler.pick(free.tolist(), pick):
        number = scheduler.model.take_number("transfer")
        return lambda batch: batch.post(number, {owner.name: [page]})
    return None


def _publish_twice(scheduler: Scheduler, pick: int) -> Ask | None:
    known = [one.number for one in scheduler.model.transfers.values() if one.published]
    for number in scheduler.pick(known, pick):
        return lambda batch: batch.publish(number)
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
)
