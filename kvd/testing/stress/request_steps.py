"""Steps on requests and forwards: what each of them asks, picked among who is there."""

from functools import partial

from kvd.testing.stress.program import (
    Abort,
    Admit,
    Advance,
    AskAgain,
    Decode,
    Extend,
    Free,
    GiveUp,
    Idle,
    Launch,
    Process,
    Record,
    Relief,
    ResetSink,
    Send,
    Stand,
)
from kvd.testing.stress.scheduler import BATCH_ASKS_MAX, Scheduler, Touch
from kvd.testing.stress.script import OpenLaunch
from kvd_client import STANDING, Batch

REQUESTS_ADMITTED_MAX = 3
RESERVE_BATCHES_MAX = 12
PERMILLE = 1000


def admit(scheduler: Scheduler, step: Admit) -> bool:
    """Ask for new requests; some are longer than the stage allows."""
    limits, model = scheduler.limits, scheduler.model
    count = step.count % REQUESTS_ADMITTED_MAX + 1
    ids = [model.take_number("request") for _ in range(count)]
    chunk = step.chunk_tokens % (2 * limits.chunk_tokens + 1)
    prompts: list[int] = []
    news: list[int] = []
    takes: list[int] = []
    for place in range(count):
        prompt = (step.prompt_tokens + 7 * place) % limits.context_tokens + 1
        prompts.append(prompt)
        news.append((step.new_tokens + 5 * place) % limits.context_tokens)
        most = min(prompt, chunk or limits.chunk_tokens)
        takes.append((step.take_tokens + place) % most + 1)
    victims = scheduler.victims(step.victims_count % 4, step.first_victim_index)
    batches = step.reserve_batches % RESERVE_BATCHES_MAX

    def ask(batch: Batch) -> None:
        batch.admit(
            ids,
            prompt_tokens=prompts,
            new_tokens_max=news,
            take_tokens=takes if step.take_tokens else None,
            chunk_tokens=chunk,
            reserve_batches=batches,
            growth_permille=step.growth_permille % (PERMILLE + 1),
            victims=victims,
        )

    scheduler.ask(ask)
    taken = takes if step.take_tokens else [0] * count
    scheduler.batch.opened_tokens.update(zip(ids, taken, strict=True))
    scheduler.touch("request", victims, Touch.CHANGES)
    return True


def ask_again(scheduler: Scheduler, step: AskAgain) -> bool:
    """Ask once more for somebody who waits."""
    waiting = [
        one
        for one in scheduler.model.waiting.values()
        if scheduler.is_free_for("request", one.number, Touch.CHANGES)
    ]
    chosen = scheduler.pick_one(waiting, step.pick_index)
    if chosen is None:
        return False
    most = min(chosen.prompt_tokens, scheduler.limits.chunk_tokens)
    takes = [(step.take_tokens - 1) % most + 1] if step.take_tokens else None
    victims = scheduler.victims(step.victims_count % 4, step.first_victim_index)

    def ask(batch: Batch) -> None:
        batch.admit(
            [chosen.number],
            prompt_tokens=[chosen.prompt_tokens],
            new_tokens_max=[chosen.new_tokens],
            take_tokens=takes,
            victims=victims,
        )

    scheduler.ask(ask)
    scheduler.touch("request", [chosen.number, *victims], Touch.CHANGES)
    return True


def give_up(scheduler: Scheduler, step: GiveUp) -> bool:
    """Give up somebody who waits."""
    waiting = [
        number
        for number in scheduler.model.waiting
        if scheduler.is_free_for("request", number, Touch.CHANGES)
    ]
    chosen = scheduler.pick(waiting, step.pick_index)
    if chosen:
        scheduler.ask(lambda batch: batch.free(chosen))
        scheduler.touch("request", chosen, Touch.CHANGES)
    return bool(chosen)


def extend(scheduler: Scheduler, step: Extend) -> bool:
    """Grow requests, up to twice their chunk, within the context."""
    picked = scheduler.pick(scheduler.running(), step.pick_index, step.count % 4 + 1)
    chosen = [request.number for request in picked]
    scheduler.calm("request", chosen, Touch.GROWS)
    ids: list[int] = []
    each: list[int] = []
    for number in chosen:
        request = scheduler.model.requests.get(number)
        if request is None:
            continue
        planned = scheduler.batch.taken_tokens.get(number, 0)
        room = scheduler.limits.context_tokens - request.tokens - planned
        if room > 0:
            ids.append(number)
            each.append(min(room, step.tokens % (2 * scheduler.limits.chunk_tokens) + 1))
    return _take(scheduler, ids, each, step.victims_count, step.first_victim_index)


def _take(
    scheduler: Scheduler, ids: list[int], each: list[int], victims_count: int, first_index: int
) -> bool:
    if not ids:
        return False
    # A victim may be among those who take.
    victims = scheduler.victims(victims_count % 4, first_index)
    scheduler.ask(lambda batch: batch.take(ids, each, victims=victims))
    taken = scheduler.batch.taken_tokens
    for number, tokens in zip(ids, each, strict=True):
        taken[number] = taken.get(number, 0) + tokens
    scheduler.touch("request", ids, Touch.GROWS)
    scheduler.touch("request", victims, Touch.CHANGES)
    return True


def _members(scheduler: Scheduler) -> list[int]:
    """Return the standing set as it will be; nobody in it is touched otherwise.

    Those who join it only if they are admitted are left out.
    """
    scheduler.calm("request", scheduler.model.standing, Touch.GROWS)
    members = dict.fromkeys(scheduler.model.standing)
    for number, joins in scheduler.batch.standing.items():
        if joins:
            members[number] = None
        else:
            members.pop(number, None)
    return list(members)


def decode(scheduler: Scheduler, step: Decode) -> bool:
    """Grow the standing set by a token each; those that are full leave it before."""
    members = _members(scheduler)
    most, batch = scheduler.limits.context_tokens, scheduler.batch
    if any(
        batch.opened_tokens[number] + batch.taken_tokens.get(number, 0) >= most
        for number in batch.standing_if_admitted
    ):
        scheduler.send()  # who is full has to leave, and cannot before he is admitted
        members = _members(scheduler)
    requests, taken = scheduler.model.requests, scheduler.batch.taken_tokens
    full = [number for number in members if requests[number].tokens + taken.get(number, 0) >= most]
    if full:
        scheduler.ask(lambda batch: batch.standing(remove=full))
        scheduler.batch.standing.update(dict.fromkeys(full, False))
        scheduler.touch("request", full, Touch.GROWS)
    growing = [number for number in members if number not in full]
    if not growing:
        return False
    victims = scheduler.victims(step.victims_count % 4, step.first_victim_index)
    scheduler.ask(lambda batch: batch.take(STANDING, 1, victims=victims))
    for number in (*growing, *scheduler.batch.standing_if_admitted):
        taken[number] = taken.get(number, 0) + 1
    scheduler.touch("request", growing, Touch.GROWS)
    scheduler.touch("request", victims, Touch.CHANGES)
    return True


def stand(scheduler: Scheduler, step: Stand) -> bool:
    """Have requests join the standing set or leave it, also those that are only asked for."""
    batch = scheduler.batch
    own = [request.number for request in scheduler.running() if not request.is_others]
    those = [
        number
        for number in [*own, *batch.opened_tokens]
        if scheduler.is_free_for("request", number, Touch.GROWS)
    ]
    chosen = sorted(scheduler.pick(those, step.pick_index, step.count % 4 + 1))
    if not chosen:
        return False
    standing = scheduler.model.standing
    inside = [number for number in chosen if batch.standing.get(number, number in standing)]
    # An operation that names somebody who is refused is skipped as a whole.
    fresh = [number for number in chosen if number in batch.opened_tokens]
    joining = [number for number in chosen if number not in inside and number not in fresh]
    if joining or inside:
        scheduler.ask(lambda batch: batch.standing(joining, inside))
    for number in fresh:
        scheduler.ask(partial(_join, number))
    batch.standing_if_admitted.update(dict.fromkeys(fresh))
    batch.standing.update(dict.fromkeys(inside, False))
    batch.standing.update(dict.fromkeys(joining, True))
    scheduler.touch("request", [*joining, *inside], Touch.GROWS)
    scheduler.touch("request", fresh, Touch.CHANGES)
    return True


def _join(number: int, batch: Batch) -> None:
    batch.standing([number])


def advance(scheduler: Scheduler, step: Advance) -> bool:
    """State what forwards that were launched have computed."""
    if step.standing:
        chosen = _members(scheduler)
    else:
        picked = scheduler.pick(scheduler.running(), step.pick_index, step.count % 4 + 1)
        chosen = [request.number for request in picked]
    scheduler.calm("request", chosen, Touch.GROWS)
    advanced = scheduler.batch.advanced_tokens
    ids: list[int] = []
    each: list[int] = []
    for number in chosen:
        request = scheduler.model.requests.get(number)
        if request is None or not scheduler.may_end(request):
            continue
        planned = advanced.get(number, 0)
        room = request.written_tokens - request.computed_tokens - planned
        if room > 0:
            ids.append(number)
            each.append(min(room, step.tokens) if step.tokens else room)
            advanced[number] = planned + each[-1]
    if not ids:
        return False
    # No forward has computed anything for those who are only just asked for.
    are_all = ids == chosen and not scheduler.batch.standing_if_admitted
    if step.standing and are_all and len(dict.fromkeys(each)) == 1:
        scheduler.ask(lambda batch: batch.advance(STANDING, each[0]))
    else:
        scheduler.ask(lambda batch: batch.advance(ids, each))
    scheduler.touch("request", ids, Touch.GROWS)
    return True


def free(scheduler: Scheduler, step: Free) -> bool:
    """End requests whom nobody is to write."""
    chosen = scheduler.pick(_ending(scheduler), step.pick_index, step.count % 3 + 1)
    if scheduler.calm("request", chosen, Touch.CHANGES):
        still = _ending(scheduler)
        chosen = [number for number in chosen if number in still]
    if not chosen:
        return False
    scheduler.ask(lambda batch: batch.free(chosen))
    scheduler.touch("request", chosen, Touch.CHANGES)
    return True


def _ending(scheduler: Scheduler) -> list[int]:
    return [request.number for request in scheduler.running() if scheduler.may_end(request)]


# ---- forwards -----------------------------------------------------------------------------------


def launch(scheduler: Scheduler, step: Launch) -> bool:
    """Begin a forward over requests that may run."""
    scheduler.prepare_launch()
    fitting = [request.number for request in scheduler.running() if scheduler.may_run(request)]
    standing = list(scheduler.model.standing)
    runs_standing = step.standing and bool(standing) and all(one in fitting for one in standing)
    if runs_standing:
        chosen = standing
    else:
        chosen = sorted(scheduler.pick(fitting, step.pick_index, step.count + 1))
    if not chosen:
        return False
    scheduler.open_launch(
        OpenLaunch(
            tuple(chosen),
            None if step.unstated else tuple(chosen),
            standing=runs_standing and not step.unstated,
            silent=step.silent,
        )
    )
    return True


def record(scheduler: Scheduler, step: Record) -> bool:
    """End the open launch."""
    if not scheduler.launching:
        return False
    scheduler.close_launch()
    return True


def abort(scheduler: Scheduler, step: Abort) -> bool:
    """Leave the open launch by an exception; what names units is asked before."""
    scheduler.send_if(scheduler.launching and scheduler.batch.names_units)
    if not scheduler.launching:
        return False
    scheduler.close_launch(aborts=True)
    return True


def process(scheduler: Scheduler, step: Process) -> bool:
    """Notice that forwards are over."""
    return scheduler.process(step.count % 4 + 1) > 0


# ---- the arena as a whole -----------------------------------------------------------------------


def relief(scheduler: Scheduler, step: Relief) -> bool:
    """Make room."""
    bands = scheduler.contents.bands
    rooms = [band.owners.size - band.unit_index_min for band in bands]
    units = [0] * len(bands)
    for index, count in enumerate(step.units[: len(bands)]):
        units[index] = count % (rooms[index] + 1)
    scheduler.ask(lambda batch: batch.relief(units))
    return True


def reset_sink(scheduler: Scheduler, step: ResetSink) -> bool:
    """Have a forward leave something in the sink, and then have that filled with zero."""
    scheduler.prepare_launch()
    fitting = [request.number for request in scheduler.running() if scheduler.may_run(request)]
    if fitting:
        writes = tuple(fitting[:1])
        scheduler.open_launch(
            OpenLaunch(writes, writes, standing=False, silent=False, dirties_sink=True)
        )
        scheduler.close_launch()
    scheduler.ask(lambda batch: batch.reset_sink())
    return True


def idle(scheduler: Scheduler, step: Idle) -> bool:
    """Say that nothing is launched before the next batch."""
    if scheduler.launching:
        scheduler.close_launch()
    scheduler.ask(lambda batch: batch.idle())
    scheduler.batch.idles = True
    return True


def send(scheduler: Scheduler, step: Send) -> bool:
    """Send the open batch, if there is anything to say."""
    if not scheduler.has_asked and not scheduler.has_notices:
        return False
    scheduler.send()
    return True


def is_full(scheduler: Scheduler) -> bool:
    """Return whether the open batch is as long as batches get."""
    return len(scheduler.batch.asks) >= BATCH_ASKS_MAX
