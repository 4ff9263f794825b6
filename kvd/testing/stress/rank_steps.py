"""Steps on ranks and their devices: what runs when, how transfers end, and death."""

from typing import TYPE_CHECKING

from kvd.testing.modelled.ranks import DEADLINE_MS
from kvd.testing.stress.misuse import MISUSES
from kvd.testing.stress.pace import FAVOURS
from kvd.testing.stress.program import (
    CheckTables,
    Die,
    EndTransfer,
    FailCopy,
    Follow,
    Lead,
    LetGo,
    Misuse,
    Play,
)
from kvd.testing.stress.ranks import Peer, StressRank
from kvd.testing.stress.scheduler import Scheduler
from kvd_client.errors import ReplyError
from kvd_proto.operations import CopyEnded, TransferEnded

if TYPE_CHECKING:
    from kvd.testing.stress.run import StressRun

ACTIONS_MAX = 60
PARTS_FOLLOWED_MAX = 8


def play(run: "StressRun", step: Play) -> bool:
    """Let actions run."""
    run.pace.favour_index = step.favour_index % len(FAVOURS)
    return run.world.advance(step.actions_count % ACTIONS_MAX + 1) > 0


def follow(run: "StressRun", step: Follow) -> bool:
    """Have a rank catch up by some parts."""
    hands = run.stage.hands
    hand = hands[step.rank % len(hands)]
    return run.follow(hand, step.count % PARTS_FOLLOWED_MAX + 1) > 0


def lead(run: "StressRun", step: Lead) -> bool:
    """Have another rank be the first, where ranks are all alike."""
    hands = run.stage.hands
    index = step.rank % len(hands)
    if run.program.leader or index == run.first_index:
        return False
    run.follow(hands[index], len(run.script))
    run.first_index = index
    return True


def check_tables(run: "StressRun", step: CheckTables) -> bool:
    """Have a rank that did everything compare its tables with the books."""
    hands = run.stage.hands
    hand = hands[step.rank % len(hands)]
    if hand.launching or hand.done_count != len(run.script):
        return False
    hand.rank.note("compares its tables")
    hand.rank.client.check_tables()
    return True


def die(run: "StressRun", step: Die) -> bool:
    """Let one rank die, or all of them."""
    count = run.program.ranks_count
    run.die(range(count) if step.all_die else [step.rank % count])
    return True


# ---- copies and transfers -----------------------------------------------------------------------


def fail_copy(run: "StressRun", step: FailCopy) -> bool:
    """Have a rank report as failed a copy that is over on it and that it did not report."""
    ranks = run.stage.ranks
    rank = ranks[step.rank % len(ranks)]
    running = [copy.number for copy in run.model.copies.values() if copy.submitted]
    for number in run.scheduler.pick(running, step.pick_index):
        try:
            end = rank.client.session.applier.copies.end_of(number)
        except ReplyError:
            return False  # this rank did not come to it yet
        if end is None:
            return False
        rank.note(f"reports copy {number}")
        end.synchronize(DEADLINE_MS)
        rank.client.fact(CopyEnded(number, failed=True))
        return True
    return False


def let_go(run: "StressRun", step: LetGo) -> bool:
    """Let the peers of a transfer begin, on all ranks."""
    published = [one.number for one in run.model.transfers.values() if one.published]
    for number in run.scheduler.pick(published, step.pick_index):
        for rank in run.stage.ranks:
            rank.let_go(number)
        return True
    return False


def end_transfer(run: "StressRun", step: EndTransfer) -> bool:
    """Have a rank report how a transfer ended there."""
    ranks = run.stage.ranks
    rank = ranks[step.rank % len(ranks)]
    for peer in run.scheduler.pick(list(rank.peers.values()), step.pick_index):
        return report_transfer(run, rank, peer, failed=step.failed, proven=not step.unproven)
    return False


def report_transfer(
    run: "StressRun", rank: StressRank, peer: Peer, *, failed: bool, proven: bool
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


def misuse(run: "StressRun", step: Misuse) -> bool:
    """Ask for something wrong between two things that are not."""
    return ask_wrong(run.scheduler, step)


def ask_wrong(scheduler: Scheduler, step: Misuse) -> bool:
    """Send a batch that holds something wrong."""
    if scheduler.has_asked:
        scheduler.send()
    ask = MISUSES[step.kind_index % len(MISUSES)](scheduler, step.pick_index)
    if ask is None:
        return False
    scheduler.ask(lambda batch: batch.relief([0] * len(scheduler.contents.bands)))
    scheduler.ask(ask)
    scheduler.ask(lambda batch: batch.relief([0] * len(scheduler.contents.bands)))
    scheduler.send(misused=True)
    return True
