"""Runs of steps in which a use of pages meets whoever writes or reads the same bytes next.

Cells of the clearance tables (semantics 8.3 and 8.4) need three things at once: something is at
work on units, their owner ends or they move, and there is no room but theirs. Drawn one by one,
steps seldom bring that about; each run here is one such meeting, with everything else drawn.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from kvd.testing.stress.daring import DARES
from kvd.testing.stress.misuse import MISUSES
from kvd.testing.stress.program import (
    Abort,
    Admit,
    Advance,
    AnyStep,
    AskAgain,
    Backup,
    Decode,
    Die,
    Elsewhere,
    EndTransfer,
    Evict,
    Extend,
    Follow,
    Free,
    Hold,
    Idle,
    Insert,
    Launch,
    LetGo,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Misuse,
    Play,
    Post,
    Process,
    Publish,
    Record,
    Relief,
    ResetSink,
    Send,
    Stand,
)

Meeting = Callable[[Random], Iterator[AnyStep]]

PICKS: Final = 64
ALL: Final = 7
"""A count that names everybody there is."""
BANDS_MAX: Final = 5
RELIEF_UNITS: Final = (0, 0, 0, 2, 4, 8, 12, 20)
SQUEEZED_UNITS: Final = (44, 34, 26, 20, 15, 11, 8, 6, 4, 3, 2)
RANKS_MAX: Final = 4


def _pick(random: Random) -> int:
    return random.randrange(PICKS)


def _fill(random: Random) -> Iterator[AnyStep]:
    """Take all the room there is."""
    for _ in range(random.randint(1, 3)):
        yield Admit(
            count=2,
            prompt_tokens=random.randrange(8, 64),
            new_tokens=random.randrange(8),
            take_tokens=random.randrange(1, 32),
            chunk_tokens=0,
        )
    yield Send()
    yield Extend(pick_index=_pick(random), count=3, tokens=random.randrange(8, 32))
    yield Send()


def _take(random: Random) -> Iterator[AnyStep]:
    """Hand out what was just given back, to whoever it may be."""
    match random.randrange(8):
        case 6 | 7:
            yield from _squeeze(random)
        case 0:
            yield Extend(pick_index=_pick(random), count=3, tokens=random.randrange(4, 32))
            yield Extend(pick_index=_pick(random), count=3, tokens=random.randrange(4, 32))
        case 1:
            yield Admit(
                count=random.randrange(3),
                prompt_tokens=random.randrange(4, 48),
                take_tokens=random.randrange(1, 32),
            )
            yield Admit(prompt_tokens=random.randrange(4, 24), take_tokens=random.randrange(1, 24))
        case 2:
            yield _relief(random)
        case 3:
            yield LoadReserve(pick_index=_pick(random), count=4, windows_count=3)
            yield LoadSubmit(pick_index=_pick(random))
        case 4:
            yield _relief(random)
            yield Extend(pick_index=_pick(random), count=3, tokens=random.randrange(4, 32))
        case _:
            yield Decode()
            yield _relief(random)
    yield Send()


def _squeeze(random: Random) -> Iterator[AnyStep]:
    """Ask for less and less room in one band until some fits, which mostly moves what is there."""
    wanted = random.randrange(BANDS_MAX)
    for units in SQUEEZED_UNITS[random.randrange(3) :]:
        yield Relief(units=tuple(units if band == wanted else 0 for band in range(BANDS_MAX)))
    yield Send()


def _relief(random: Random) -> AnyStep:
    if random.randrange(5) == 0:
        return Idle()
    return Relief(units=tuple(random.choice(RELIEF_UNITS) for _ in range(BANDS_MAX)))


def _values(random: Random) -> Iterator[AnyStep]:
    """Have some values, computed and settled."""
    yield Launch(count=ALL)
    yield Record()
    yield Advance(pick_index=_pick(random), count=3)
    yield Insert(pick_index=_pick(random))
    if random.randrange(2):
        yield Insert(pick_index=_pick(random))
    yield Process(count=3)
    yield Process(count=3)
    yield Send()


def _long_values(random: Random) -> Iterator[AnyStep]:
    """Have some values that are longer than windows, so that they lack pages there."""
    yield Admit(count=1, prompt_tokens=random.randrange(24, 64), take_tokens=31)
    yield Send()
    for _ in range(random.randint(1, 3)):
        yield Extend(pick_index=_pick(random), count=3, tokens=31)
        yield Send()
        yield Launch(count=ALL)
        yield Record()
        yield Advance(pick_index=0, count=3)
        yield Advance(pick_index=4, count=3)
        yield Process(count=3)
        yield Send()
    yield Insert(pick_index=_pick(random))
    yield Insert(pick_index=_pick(random))
    yield Process(count=3)
    yield Send()


def _later(random: Random) -> Iterator[AnyStep]:
    """Let ranks and devices come some way, or none."""
    if random.randrange(2):
        yield Play(actions_count=random.randrange(40))
        yield Follow(rank=random.randrange(RANKS_MAX), count=random.randrange(8))


def backed_up_and_given_up(random: Random) -> Iterator[AnyStep]:
    """Give a value up while it is backed up."""
    yield from _fill(random)
    yield from random.choice((_values, _long_values, _long_values))(random)
    pick = _pick(random)
    for _ in range(random.randint(1, 3)):
        yield Backup(pick_index=pick, band=random.randrange(8), count=5, bands_count=3)
    yield Evict(pick_index=pick, count=random.randrange(2))
    if random.randrange(3) == 0:
        yield from _squeeze(random)
    yield from _take(random)
    yield from _take(random)
    yield from _later(random)


def loaded_over_what_moved(random: Random) -> Iterator[AnyStep]:
    """Load into bytes that a forward in flight reads and that moved away from there."""
    yield from _long_values(random)
    yield from _fill(random)
    yield Free(pick_index=_pick(random), count=random.randrange(2))
    yield Process(count=3)
    yield Send()
    yield Launch(count=ALL, silent=random.randrange(2) == 0)
    yield Record()
    yield from _squeeze(random)
    for _ in range(2):
        yield LoadReserve(pick_index=_pick(random), count=4, windows_count=3)
        yield LoadSubmit(pick_index=_pick(random))
    yield Send()
    yield from _later(random)


def backed_up_under_forwards(random: Random) -> Iterator[AnyStep]:
    """Back up what a forward in flight is writing."""
    yield from _fill(random)
    yield Launch(count=ALL, unstated=random.randrange(4) == 0)
    yield Record()
    yield Advance(pick_index=_pick(random), count=3)
    yield Insert(pick_index=_pick(random))
    yield Send()
    for pick in range(3):
        yield Backup(pick_index=pick, band=random.randrange(8), count=5, bands_count=3)
    yield Send()
    yield from _later(random)


def aborted(random: Random) -> Iterator[AnyStep]:
    """Leave a launch by an exception, and move or hand out what it may be writing."""
    yield from _fill(random)
    yield Process(count=3)
    yield Launch(count=ALL, pick_index=_pick(random))
    yield Abort()
    if random.randrange(2):
        yield Free(pick_index=_pick(random), count=random.randrange(2))
    yield from _squeeze(random)
    yield from _take(random)
    yield from _later(random)


def load_given_up(random: Random) -> Iterator[AnyStep]:
    """Give a load up whose units have names in part, or have them move before it is submitted."""
    yield from random.choice((_values, _long_values, _long_values))(random)
    pick = _pick(random)
    yield LoadReserve(pick_index=pick, count=4, windows_count=3)
    yield Send()
    yield LoadName(pick_index=pick, count=random.randrange(5))
    if random.randrange(2):
        yield LoadName(pick_index=pick, count=4)
    yield Free(pick_index=_pick(random))
    yield Send()
    yield from _squeeze(random)
    yield LoadCancel(pick_index=pick) if random.randrange(2) else LoadSubmit(pick_index=pick)
    yield from _take(random)
    yield from _later(random)


def loaded_and_given_up(random: Random) -> Iterator[AnyStep]:
    """Give a value up while it is loaded into."""
    yield from random.choice((_values, _long_values, _long_values))(random)
    yield from _fill(random)
    pick = _pick(random)
    yield LoadReserve(pick_index=pick, count=4, windows_count=3)
    yield LoadSubmit(pick_index=pick)
    yield Send()
    yield Evict(pick_index=pick, count=2)
    if random.randrange(2):
        yield from _squeeze(random)
    yield from _take(random)
    yield from _take(random)
    yield from _later(random)


def loaded_and_read(random: Random) -> Iterator[AnyStep]:
    """Back up, send or receive into what is being loaded, or have it move."""
    yield from random.choice((_values, _long_values, _long_values))(random)
    pick = _pick(random)
    yield LoadReserve(pick_index=pick, count=4, windows_count=3)
    yield LoadSubmit(pick_index=pick)
    yield Send()
    for _ in range(2):
        match random.randrange(4):
            case 0:
                yield Backup(pick_index=pick, band=random.randrange(8), count=5, bands_count=3)
            case 1:
                yield Post(pick_index=pick, count=5)
            case 2:
                yield Hold(pick_index=pick, count=5, value=True)
                yield Publish(pick_index=_pick(random))
            case _:
                yield Free(pick_index=_pick(random), count=random.randrange(3))
                yield from _squeeze(random)
    yield Send()
    yield from _later(random)


def published_over_copies(random: Random) -> Iterator[AnyStep]:
    """Tell a peer places that a backup reads, or a load writes."""
    yield from random.choice((_values, _long_values, _long_values))(random)
    pick = _pick(random)
    if random.randrange(2):
        yield Backup(pick_index=pick, band=random.randrange(8), count=5, bands_count=3)
    else:
        yield LoadReserve(pick_index=pick, count=4, windows_count=3)
        yield LoadSubmit(pick_index=pick)
    yield Send()
    for beside in range(3):
        yield Hold(pick_index=pick + beside, count=5, value=True)
    yield Send()
    if random.randrange(3) == 0:
        yield from _squeeze(random)
    for beside in range(3):
        yield Publish(pick_index=beside)
    yield Send()
    yield LetGo(pick_index=_pick(random))
    yield from _later(random)
    yield from _reports(random)


def moved_under_forwards(random: Random) -> Iterator[AnyStep]:
    """Move what a forward reads and writes, or hand out what it read."""
    yield from _fill(random)
    yield Free(pick_index=_pick(random), count=random.randrange(2))
    yield Process(count=3)
    yield Send()
    yield Launch(
        pick_index=_pick(random),
        count=random.randrange(ALL),
        unstated=random.randrange(3) == 0,
        silent=random.randrange(3) == 0,
    )
    yield Record()
    if random.randrange(2):
        yield Free(pick_index=_pick(random))
    yield from _squeeze(random)
    if random.randrange(2):
        yield from _squeeze(random)
    yield from _take(random)
    yield from _later(random)


def freed_under_forwards(random: Random) -> Iterator[AnyStep]:
    """End requests under several forwards in flight, and take again what they held."""
    yield from _fill(random)
    for _ in range(random.randint(2, 4)):
        yield Launch(pick_index=_pick(random), count=random.randrange(ALL))
        yield Record()
        yield Free(pick_index=_pick(random), count=random.randrange(2))
        if random.randrange(2):
            yield Send()
    if random.randrange(2):
        yield Process(count=random.randrange(3))
    yield from _take(random)
    yield Launch(count=ALL)
    yield from _later(random)
    yield from _take(random)


def sent_and_given_up(random: Random) -> Iterator[AnyStep]:
    """Give up, free or move what a peer reads, and want its place."""
    yield from _values(random)
    yield from _fill(random)
    pick = _pick(random)
    request = random.randrange(3) == 0
    if request:
        yield Process(count=3)
        yield Process(count=3)
    yield Post(pick_index=pick, count=5, band=random.randrange(6), request=request)
    yield Send()
    yield Free(pick_index=pick) if request else Evict(pick_index=pick)
    if random.randrange(2):
        yield from _squeeze(random)
    yield from _take(random)
    yield from _take(random)
    yield from _later(random)
    if random.randrange(3) == 0:
        yield from _losses(random)
        yield from _take(random)
    elif random.randrange(2):
        yield LetGo(pick_index=_pick(random))
        yield from _reports(random)


def received_and_wanted(random: Random) -> Iterator[AnyStep]:
    """Have a peer write, or be about to, where others would have to move."""
    yield from _fill(random)
    yield Process(count=3)
    yield Process(count=3)
    value = random.randrange(2) == 0
    yield Hold(pick_index=_pick(random), count=5, band=random.randrange(6), value=value)
    yield Send()
    yield from _squeeze(random)
    if random.randrange(3):
        yield Publish(pick_index=_pick(random))
    yield Free(pick_index=_pick(random), count=random.randrange(2))
    yield from _take(random)
    yield from _take(random)
    yield LetGo(pick_index=_pick(random))
    yield from _later(random)
    yield from _reports(random)


def lost_and_wanted(random: Random) -> Iterator[AnyStep]:
    """Have a transfer fail without proof, and want what it touches."""
    yield from _values(random)
    pick = _pick(random)
    if random.randrange(2):
        yield Post(pick_index=pick, count=5)
    else:
        yield Hold(pick_index=pick, count=5, value=True)
        yield Publish(pick_index=_pick(random))
    yield Send()
    yield from _losses(random)
    yield Evict(pick_index=pick)
    yield from _squeeze(random)
    yield from _take(random)
    yield from _fill(random)
    yield from _later(random)


def _losses(random: Random) -> Iterator[AnyStep]:
    """Have every rank say that it knows nothing of the end of some transfer."""
    pick = _pick(random)
    for _ in range(2):
        for rank in range(RANKS_MAX):
            yield EndTransfer(pick_index=pick, rank=rank, failed=True, unproven=True)
    yield Send()


def dared(random: Random) -> Iterator[AnyStep]:
    """Read, tell or hold units while a step, a load or a peer may be writing them."""
    yield from random.choice((_values, _long_values))(random)
    pick = _pick(random)
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
                yield Publish(pick_index=_pick(random))
        case _:
            yield Extend(pick_index=_pick(random), count=3, tokens=random.randrange(1, 9))
            yield Post(pick_index=_pick(random), count=5, request=True)
            yield Hold(pick_index=pick, count=5)
            yield Hold(pick_index=pick + 1, count=5)
            yield Send()
            yield Launch(count=ALL)
            yield Record()
    yield Send()
    for _ in range(4):
        wrong = len(MISUSES)
        first, count = (0, wrong) if random.randrange(4) == 0 else (wrong, len(DARES))
        yield Misuse(kind_index=first + random.randrange(count), pick_index=_pick(random))
    yield from _later(random)


def moved_elsewhere(random: Random) -> Iterator[AnyStep]:
    """Have another program move what a forward writes that was not told."""
    yield from _fill(random)
    yield Free(pick_index=_pick(random), count=random.randrange(2))
    for _ in range(random.randint(1, 2)):
        yield Process(count=3)
        yield Process(count=3)
        yield Send()
        for _ in range(random.randint(1, 2)):
            yield Launch(pick_index=_pick(random), count=ALL, silent=random.randrange(2) == 0)
            yield Record()
        yield Elsewhere(
            pick_index=_pick(random),
            band=random.randrange(8),
            value=random.randrange(2) == 0,
        )
        yield from _take(random)
        yield from _later(random)


def slots_moved_before_a_launch(random: Random) -> Iterator[AnyStep]:
    """Move slots that were handed out, or have a peer write them, before a launch clears them."""
    yield from _fill(random)
    yield Launch(count=ALL)
    yield Record()
    yield Process(count=3)
    yield Process(count=3)
    yield Send()
    yield Admit(prompt_tokens=random.randrange(1, 12), take_tokens=random.randrange(1, 12))
    yield Free(pick_index=random.randrange(3), count=random.randrange(2))
    yield Send()
    if random.randrange(2):
        yield Relief(units=(0, *[random.choice(RELIEF_UNITS) for _ in range(BANDS_MAX - 1)]))
    else:
        yield Hold(pick_index=_pick(random), count=5)
        yield Publish(pick_index=_pick(random))
        yield Send()
        yield LetGo(pick_index=_pick(random))
        yield Play(actions_count=random.randrange(60))
        yield from _reports(random)
    yield Send()
    yield Launch(count=ALL)
    yield from _later(random)


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
    first = _pick(random)
    for _ in range(2):
        yield Extend(
            pick_index=_pick(random),
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
    yield Free(pick_index=_pick(random), count=2)
    for _ in range(3):
        yield AskAgain(pick_index=_pick(random), take_tokens=random.randrange(32), victims_count=3)
        yield Send()
    for _ in range(5):
        yield Extend(pick_index=_pick(random), tokens=random.randrange(8))
        yield Send()


def sink_reset_between_forwards(random: Random) -> Iterator[AnyStep]:
    """Reset the sink while forwards run."""
    yield Launch(count=ALL, silent=random.randrange(2) == 0)
    yield Record()
    yield ResetSink()
    yield Send()
    yield Launch(pick_index=_pick(random), count=2)
    yield from _later(random)


def moved_and_died(random: Random) -> Iterator[AnyStep]:
    """Let ranks die in the middle of rearrangements of values that survive them."""
    yield from _fill(random)
    for _ in range(random.randint(1, 2)):
        yield from _values(random)
    for rank in range(RANKS_MAX):
        yield Follow(rank=rank, count=7)
        yield Follow(rank=rank, count=7)
    for _ in range(3):
        yield Play(actions_count=59)
    yield Process(count=3)
    yield Free(pick_index=_pick(random), count=random.randrange(3))
    yield Send()
    for rank in range(RANKS_MAX):
        yield Follow(rank=rank, count=7)
    yield Play(actions_count=59)
    for _ in range(random.randint(1, 3)):
        yield from _squeeze(random)
        yield from _take(random)
    for rank in range(RANKS_MAX):
        yield Follow(rank=rank, count=random.randrange(8))
    yield Play(actions_count=random.randrange(30), favour_index=random.randrange(10))
    yield Die(rank=random.randrange(RANKS_MAX), all_die=random.randrange(2) == 0)


def _reports(random: Random) -> Iterator[AnyStep]:
    for rank in range(RANKS_MAX):
        yield EndTransfer(
            pick_index=_pick(random), rank=rank, failed=random.randrange(6) == 0, unproven=True
        )
    yield Send()


def _pass(random: Random) -> Iterator[AnyStep]:
    yield Stand(pick_index=_pick(random), count=3)
    yield Advance(standing=True)
    yield Decode(victims_count=random.randrange(3))
    yield Process(count=random.randrange(2))
    yield Send()
    yield Launch(pick_index=_pick(random), count=ALL, standing=random.randrange(2) == 0)
    yield Record()
    yield from _later(random)


MEETINGS: Final[tuple[Meeting, ...]] = (
    backed_up_and_given_up,
    backed_up_under_forwards,
    aborted,
    load_given_up,
    loaded_over_what_moved,
    loaded_and_given_up,
    loaded_and_read,
    published_over_copies,
    moved_under_forwards,
    moved_under_forwards,
    freed_under_forwards,
    sent_and_given_up,
    received_and_wanted,
    lost_and_wanted,
    dared,
    dared,
    moved_elsewhere,
    slots_moved_before_a_launch,
    sink_reset_between_forwards,
    retracted_and_back,
    _pass,
    _pass,
)
DEATHS: Final[tuple[Meeting, ...]] = (moved_and_died, moved_and_died, moved_and_died)
"""What happens beside everything else where ranks die."""
NAMED_MEETINGS: Final[dict[str, Meeting]] = {
    meeting.__name__.strip("_"): meeting for meeting in (*MEETINGS, *DEATHS)
}
"""By name, so that a run can lean to one of them."""
