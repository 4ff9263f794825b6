"""Steps on ranks and their devices: what runs when, how transfers end, and death."""

from typing import Any, Final

from kvd.errors import StressFailure
from kvd.testing.modelled.ranks import DEADLINE_MS
from kvd.testing.packed import packed_counts, packed_ids
from kvd.testing.stress.daring import CLOSE_DARES, DARES, forget_proposals
from kvd.testing.stress.failure import CheckName
from kvd.testing.stress.meeting_parts import SQUEEZED_UNITS
from kvd.testing.stress.misuse import (
    CLOSE_MISUSES,
    FIRST_CLOSE_INDEX,
    MISUSES,
    MakeMisuse,
)
from kvd.testing.stress.pace import FAVOURS
from kvd.testing.stress.played_rank import PlayedPeer, PlayedRank
from kvd.testing.stress.played_run import PlayedRun
from kvd.testing.stress.program import (
    AdmitElsewhere,
    CheckTables,
    Die,
    Elsewhere,
    EndTransfer,
    FailCopy,
    Follow,
    Lead,
    LetGo,
    Misuse,
    Play,
    Rest,
)
from kvd.testing.stress.rest import check_at_rest
from kvd.testing.stress.scheduler import Scheduler, Touch
from kvd.testing.stress.script import SendBatch
from kvd_client.errors import ReplyError
from kvd_proto.operations import Admit as AdmitOperation
from kvd_proto.operations import CopyEnded, Evict, Operation, Relief, TransferEnded

ACTIONS_MAX = 60
PARTS_FOLLOWED_MAX = 8


def play(run: PlayedRun, step: Play) -> bool:
    """Let actions run."""
    run.pace.favour_index = step.favour_index % len(FAVOURS)
    return run.advance(step.actions_count % ACTIONS_MAX + 1)


def follow(run: PlayedRun, step: Follow) -> bool:
    """Have a rank catch up by some parts."""
    hands = run.stage.hands
    hand = hands[step.rank % len(hands)]
    return run.follow(hand, step.count % PARTS_FOLLOWED_MAX + 1) > 0


def lead(run: PlayedRun, step: Lead) -> bool:
    """Have another rank be the first, where ranks are all alike."""
    hands = run.stage.hands
    index = step.rank % len(hands)
    if run.program.leader or index == run.first_index:
        return False
    run.follow(hands[index], len(run.script))
    run.first_index = index
    return True


def check_tables(run: PlayedRun, step: CheckTables) -> bool:
    """Have a rank that did everything compare its tables with the books."""
    hands = run.stage.hands
    hand = hands[step.rank % len(hands)]
    if hand.launching or hand.done_count != len(run.script):
        return False
    if not run.script or run.scheduler.batch.names_units:
        return False  # what survived a death, or was decided elsewhere, comes with a batch
    hand.rank.note("compares its tables")
    hand.rank.client.check_tables()
    return True


def rest(run: PlayedRun, step: Rest) -> bool:
    """Have everything that was begun happen, and compare all that is live on every rank."""
    if run.scheduler.launching:
        return False  # what is decided meanwhile is not applied yet
    if not run.script or run.scheduler.batch.names_units:
        run.scheduler.send()  # what survived a death, or was decided elsewhere, comes with it
    for hand in run.stage.hands:
        run.follow(hand, len(run.script))
    run.come_to_rest()
    check_at_rest(run)
    return True


def die(run: PlayedRun, step: Die) -> bool:
    """Let one rank die, or all of them."""
    count = run.program.ranks_count
    run.die(range(count) if step.all_die else [step.rank % count])
    return True


def elsewhere(run: PlayedRun, step: Elsewhere) -> bool:
    """Have another program make room, and give up a value that the open batch leaves alone."""
    scheduler = run.scheduler
    operations: list[Operation] = []
    fitting = [
        value.number
        for value in scheduler.model.values.values()
        if scheduler.may_end(value)
        and not value.loading
        and scheduler.is_free_for("value", value.number, Touch.CHANGES)
    ]
    if step.value and not scheduler.batch.names_units:
        for number in scheduler.pick(fitting, step.pick_index):
            operations.append(Evict(packed_ids(number)))
    bands = scheduler.contents.bands
    wanted = step.band % len(bands)
    room = bands[wanted].owners.size - bands[wanted].unit_index_min
    for units in SQUEEZED_UNITS:
        demand = [min(units, room) if index == wanted else 0 for index in range(len(bands))]
        operations.append(Relief(tuple(demand)))
    run.decide_elsewhere(*operations)
    scheduler.batch.names_units = True  # ranks hear of it before their next launch
    return True


def admit_elsewhere(run: PlayedRun, step: AdmitElsewhere) -> bool:
    """Have another program admit somebody who takes a first chunk at once, if he fits."""
    scheduler = run.scheduler
    limits = scheduler.limits
    if scheduler.batch.opened_tokens:
        return False  # new ids ascend, and those that the open batch asks for came first
    number = run.model.take_number("request")
    prompt_tokens = step.prompt_tokens % limits.context_tokens + 1
    take_tokens = step.take_tokens % min(prompt_tokens, limits.chunk_tokens) + 1
    run.decide_elsewhere(
        AdmitOperation(
            requests=packed_ids(number),
            prompt_tokens=packed_counts(prompt_tokens),
            new_tokens_max=packed_counts(step.new_tokens % limits.context_tokens),
            take_tokens=packed_counts(take_tokens),
        )
    )
    admitted = run.model.requests.get(number)
    if admitted is not None:
        admitted.is_others = True
    scheduler.batch.names_units = True  # ranks hear of it before their next launch
    return True


# ---- copies and transfers -----------------------------------------------------------------------


def fail_copy(run: PlayedRun, step: FailCopy) -> bool:
    """Have a rank report as failed a copy that is over on it and that it did not report."""
    ranks = run.stage.ranks
    rank = ranks[step.rank % len(ranks)]
    running = [copy.number for copy in run.model.copies.values() if copy.submitted]
    for number in run.scheduler.pick(running, step.pick_index, len(running)):
        try:
            end = rank.client.session.applier.copies.end_of(number)
        except ReplyError:
            continue  # this rank did not come to it yet
        if end is None:
            continue
        rank.note(f"reports copy {number}")
        end.synchronize(DEADLINE_MS)
        rank.client.fact(CopyEnded(number, failed=True))
        return True
    return False


def let_go(run: PlayedRun, step: LetGo) -> bool:
    """Let the peers of a transfer begin, on all ranks."""
    published = [one.number for one in run.model.transfers.values() if one.published]
    for number in run.scheduler.pick(published, step.pick_index):
        for rank in run.stage.ranks:
            rank.let_go(number)
        return True
    return False


def end_transfer(run: PlayedRun, step: EndTransfer) -> bool:
    """Have a rank report how a transfer ended there."""
    ranks = run.stage.ranks
    rank = ranks[step.rank % len(ranks)]
    for peer in run.scheduler.pick(list(rank.peers.values()), step.pick_index):
        return report_transfer(run, rank, peer, failed=step.failed, proven=not step.unproven)
    return False


def report_transfer(
    run: PlayedRun, rank: PlayedRank[Any], peer: PlayedPeer, *, failed: bool, proven: bool
) -> bool:
    """Report the end of a transfer as far as it is known; return whether anything was reported."""
    number = peer.plan.number
    if not peer.ended or (failed and not proven):
        if not failed or proven or peer.astray:
            return False
        peer.astray = True
        fact = TransferEnded(number, failed=True, proven=False)
    else:
        if not failed:
            rank.check_shipped(peer)
        del rank.peers[number]
        fact = TransferEnded(number, failed=failed)
    transfer = run.model.transfers[number]
    transfer.failed |= failed
    rank.note(f"reports transfer {number}")
    rank.client.fact(fact)
    return True


# ---- wrong use ----------------------------------------------------------------------------------


def misuse(run: PlayedRun, step: Misuse) -> bool:
    """Ask for something wrong between two things that are not; raises StressFailure if served."""
    name = ask_wrong(run.scheduler, step)
    if not name:
        return False
    run.counts[f"misuse {name}"] += 1
    part = run.script[-1]
    assert isinstance(part, SendBatch)
    if part.error is None and name in _WRONG:
        raise StressFailure(CheckName.ANSWERS, f"wrong use was served: {name}")
    return True


def ask_wrong(scheduler: Scheduler, step: Misuse) -> str:
    """Send a batch with something wrong, or something that may be turned down; return its name.

    It is the first, from the step's place on, for which there is somebody; the name is empty where
    there is nobody for any.
    """
    scheduler.send()  # with it comes what ranks have said to be over, which is no obstacle then
    is_close = step.kind_index >= FIRST_CLOSE_INDEX
    makes = (*CLOSE_MISUSES, *CLOSE_DARES) if is_close else (*MISUSES, *DARES)
    first = step.kind_index - FIRST_CLOSE_INDEX * is_close
    for make in scheduler.pick(makes, first, len(makes)):
        ask = make(scheduler, step.pick_index)
        if ask is not None:
            break
    else:
        return ""
    scheduler.ask(lambda batch: batch.relief([0] * len(scheduler.contents.bands)))
    scheduler.ask(ask)
    scheduler.ask(lambda batch: batch.relief([0] * len(scheduler.contents.bands)))
    scheduler.send(misused=True)
    forget_proposals(scheduler)
    return _name_of(make)


def _name_of(make: MakeMisuse) -> str:
    return make.__name__.strip("_")


_WRONG: Final = frozenset(_name_of(make) for make in (*MISUSES, *CLOSE_MISUSES))
"""What must not be served."""
