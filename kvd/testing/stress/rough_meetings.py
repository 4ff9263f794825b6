"""Meetings in which something goes wrong: wrong use, lost transfers, retraction, deaths."""

from collections.abc import Iterator
from random import Random

from kvd.testing.stress.daring import DARES
from kvd.testing.stress.meeting_parts import (
    ALL,
    any_place,
    caught_up,
    fill,
    later,
    long_values,
    losses,
    squeeze,
    take,
    values,
)
from kvd.testing.stress.misuse import MISUSES
from kvd.testing.stress.program import (
    RANKS_MAX,
    Abort,
    Admit,
    Advance,
    AnyStep,
    AskAgain,
    Backup,
    Die,
    Evict,
    Extend,
    FailCopy,
    Follow,
    Free,
    Hold,
    Insert,
    Launch,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Misuse,
    Play,
    Post,
    Process,
    Publish,
    Record,
    ResetSink,
    Send,
    Stand,
)


def dared(random: Random) -> Iterator[AnyStep]:
    """Read, tell or hold units while a step, a load or a peer may be writing them."""
    yield from random.choice((values, long_values))(random)
    pick = any_place(random)
    match random.randrange(4):
        case 0:
            yield Launch(count=ALL, unstated=random.randrange(2) == 0)
            yield Record()
        case 1:
            yield LoadReserve(pick_index=pick, count=4, windows_count=3)
            yield LoadName(pick_index=pick, count=4)
            if random.randrange(2):
                yield LoadSubmit(pick_index=pick)
        case 2:
            yield Hold(pick_index=pick, count=5, value=random.randrange(2) == 0)
            if random.randrange(2):
                yield Publish(pick_index=any_place(random))
        case _:
            yield from fill(random)
            yield Launch(count=ALL)
            yield Record()
            yield Process(count=3)
            yield Process(count=3)
            yield Send()
            yield Post(pick_index=any_place(random), count=5, request=True)
            yield Hold(pick_index=pick, count=5)
            yield Hold(pick_index=pick + 1, count=5)
            yield Send()
            yield Launch(count=ALL)
            yield Record()
    yield Send()
    for _ in range(4):
        wrong = len(MISUSES)
        first, count = (0, wrong) if random.randrange(2) else (wrong, len(DARES))
        yield Misuse(kind_index=first + random.randrange(count), pick_index=any_place(random))
    yield from later(random)


def wronged(random: Random) -> Iterator[AnyStep]:
    """Ask for one wrong thing after another while everything is there."""
    yield from fill(random)
    yield Stand(pick_index=any_place(random), count=3)
    yield Launch(count=ALL)
    yield Record()
    yield Advance(pick_index=any_place(random), count=1, tokens=random.randrange(1, 9))
    yield Insert(pick_index=any_place(random))
    yield Process(count=3)
    yield Send()
    yield LoadReserve(pick_index=any_place(random), count=4, windows_count=3)
    yield Post(pick_index=any_place(random), count=2, request=True)
    yield Hold(pick_index=any_place(random), count=2, band=random.randrange(6))
    yield Send()
    for _ in range(8):
        yield Misuse(kind_index=random.randrange(len(MISUSES)), pick_index=any_place(random))
    yield from later(random)


def retracted_and_back(random: Random) -> Iterator[AnyStep]:
    """Retract requests whose promises lapse, and let them in again with promises that do not."""
    for _ in range(3):
        yield Admit(
            count=2,
            prompt_tokens=random.randrange(8, 48),
            new_tokens=random.randrange(16),
            take_tokens=random.randrange(1, 32),
            reserve_batches=random.randrange(1, 9),
            growth_permille=random.randrange(1000),
        )
    yield Send()
    first = any_place(random)
    for _ in range(2):
        yield Extend(
            pick_index=any_place(random),
            count=3,
            tokens=random.randrange(8, 32),
            victims_count=3,
            first_victim_index=first,
        )
        yield Admit(
            prompt_tokens=random.randrange(8, 48),
            take_tokens=random.randrange(1, 32),
            growth_permille=random.randrange(1000),
            victims_count=3,
            first_victim_index=first,
        )
        yield Send()
    yield Free(pick_index=any_place(random), count=2)
    for _ in range(3):
        yield AskAgain(
            pick_index=any_place(random), take_tokens=random.randrange(32), victims_count=3
        )
        yield Send()
    for _ in range(5):
        yield Extend(pick_index=any_place(random), tokens=random.randrange(8))
        yield Send()


def sink_reset_between_forwards(random: Random) -> Iterator[AnyStep]:
    """Reset the sink while forwards run."""
    yield Launch(count=ALL, silent=random.randrange(2) == 0)
    yield Record()
    yield ResetSink()
    yield Send()
    yield Launch(pick_index=any_place(random), count=2)
    yield from later(random)


def moved_and_died(random: Random) -> Iterator[AnyStep]:
    """Let ranks die in the middle of rearrangements of values that survive them."""
    yield from fill(random)
    for _ in range(random.randint(1, 2)):
        yield from random.choice((values, long_values))(random)
    for rank in range(RANKS_MAX):
        yield Follow(rank=rank, count=7)
        yield Follow(rank=rank, count=7)
    for _ in range(3):
        yield Play(actions_count=59)
    if random.randrange(2):
        yield LoadReserve(pick_index=any_place(random), count=4, windows_count=3)
        yield LoadSubmit(pick_index=any_place(random))
        yield Backup(pick_index=any_place(random), band=random.randrange(8), count=5)
        yield Send()
        yield from caught_up()
        yield FailCopy(pick_index=random.randrange(2), rank=random.randrange(RANKS_MAX))
        yield Play(actions_count=random.randrange(60))
    yield Process(count=3)
    yield Free(pick_index=any_place(random), count=random.randrange(3))
    yield Send()
    yield from caught_up()
    yield Play(actions_count=59)
    for _ in range(random.randint(1, 3)):
        yield from squeeze(random)
        yield from take(random)
    for rank in range(RANKS_MAX):
        yield Follow(rank=rank, count=random.randrange(8))
    yield Play(actions_count=random.randrange(30), favour_index=random.randrange(10))
    yield Die(rank=random.randrange(RANKS_MAX), all_die=random.randrange(2) == 0)


def lost_and_wanted(random: Random) -> Iterator[AnyStep]:
    """Have a transfer fail without proof, and want what it touches."""
    yield from values(random)
    pick = any_place(random)
    if random.randrange(2):
        yield Post(pick_index=pick, count=5)
    else:
        yield Hold(pick_index=pick, count=5, value=True)
        yield Publish(pick_index=any_place(random))
    yield Send()
    yield from losses(random)
    yield Evict(pick_index=pick)
    yield from squeeze(random)
    yield from take(random)
    yield from fill(random)
    yield from later(random)


def died_at_once(random: Random) -> Iterator[AnyStep]:
    """Let ranks die while values came to be of which not every rank knows, or may have written."""
    yield from fill(random)
    yield Launch(count=ALL)
    yield Record()
    yield Process(count=3)
    yield Insert(pick_index=any_place(random))
    yield Send()
    yield from caught_up()
    yield Play(actions_count=59)
    yield Play(actions_count=59)
    if random.randrange(2):
        yield Launch(count=ALL, unstated=random.randrange(2) == 0)
        yield Abort() if random.randrange(3) == 0 else Record()
    else:
        yield Process(count=3)
        yield Send()
        yield from caught_up()
        yield Play(actions_count=59)
        yield from squeeze(random)
    yield Insert(pick_index=any_place(random))
    if random.randrange(2):
        yield Insert(pick_index=any_place(random))
    yield Send()
    if random.randrange(2):
        yield from caught_up()
        # Forwards first: what came behind them in the log has not run when they are over.
        yield Play(actions_count=random.randrange(30), favour_index=1)
        yield Process(count=3)
        yield Send()
    for rank in range(RANKS_MAX):
        yield Follow(rank=rank, count=random.randrange(8))
    yield Play(actions_count=random.randrange(40), favour_index=random.randrange(10))
    yield Die(rank=random.randrange(RANKS_MAX), all_die=random.randrange(2) == 0)
