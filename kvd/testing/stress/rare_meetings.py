"""Meetings that no run comes to by itself: only a run that leans to one of them has it.

What a seed draws stays as it is that way. Each brings about what a check needs to see something and
what other meetings hardly ever come to.
"""

from collections.abc import Iterator
from random import Random

from kvd.testing.stress.meeting_parts import (
    ALL,
    BANDS_MAX,
    any_place,
    caught_up,
    fill,
    later,
    long_values,
    losses,
    reports,
    take,
)
from kvd.testing.stress.misuse import CLOSE_MISUSES, FIRST_CLOSE_INDEX
from kvd.testing.stress.program import (
    RANKS_MAX,
    Admit,
    Advance,
    AnyStep,
    Die,
    Evict,
    Extend,
    Insert,
    Launch,
    LetGo,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Misuse,
    Play,
    Post,
    Process,
    Record,
    Relief,
    Send,
)

SEND_SLOT_INDEX = FIRST_CLOSE_INDEX + len(CLOSE_MISUSES)
"""What kind of misuse sends a slot."""
STRETCHED_UNITS_MAX = 24
"""How much is asked for at last where more and more room is made."""


def given_up_and_lost(random: Random) -> Iterator[AnyStep]:
    """Have bands leave bytes that a peer has, and nobody know then when that is over."""
    yield from _crammed(random)
    pick = any_place(random)
    yield Process(count=3)
    yield Post(pick_index=pick + 2, count=0, band=random.randrange(6))
    yield Send()
    yield Evict(pick_index=pick, count=2)
    for _ in range(3):
        yield from _stretch(random, random.choice((0, 1, 1, 1, 2, 2, 3)))
    yield Send()
    yield from caught_up()
    yield from losses(random)
    yield from losses(random)
    yield from take(random)
    for _ in range(3):
        yield LetGo(pick_index=any_place(random))
    yield Play(actions_count=59)
    yield from reports(random)
    yield from reports(random)


def read_before_its_load(random: Random) -> Iterator[AnyStep]:
    """Read, send or hold pages that a load has named and was not started for."""
    yield from long_values(random)
    pick = any_place(random)
    yield LoadReserve(pick_index=pick, count=4, windows_count=3)
    yield Send()
    yield LoadName(pick_index=any_place(random), count=4)
    yield Send()
    yield from _misuses(random)
    yield LoadSubmit(pick_index=pick)
    yield from later(random)


def reported_out_of_order(random: Random) -> Iterator[AnyStep]:
    """Have forwards reported as over that are not the oldest in flight."""
    yield from fill(random)
    for _ in range(random.randint(1, 3)):
        yield Launch(pick_index=any_place(random), count=random.randrange(ALL))
        yield Record()
    yield from _misuses(random)
    yield Process(count=random.randrange(4))
    yield from later(random)


def sent_before_its_clearing(random: Random) -> Iterator[AnyStep]:
    """Send slots that a launch over others is to clear, or is clearing."""
    yield Admit(count=1, take_tokens=4)
    yield Send()
    yield Launch(count=ALL)
    yield Record()
    yield Process(count=3)
    yield Admit(count=random.randrange(3), take_tokens=random.randrange(1, 8))
    yield Send()
    for _ in range(2):
        if random.randrange(3):
            yield Launch(pick_index=random.randrange(2), count=0)
            yield Record()
        yield Misuse(kind_index=SEND_SLOT_INDEX, pick_index=any_place(random))
    yield from later(random)
    yield Process(count=3)


def died_uncleared(random: Random) -> Iterator[AnyStep]:
    """Let ranks die while all that was asked for has run, and values hold slots of no forward."""
    yield from fill(random)
    yield Launch(count=ALL)
    yield Record()
    yield Process(count=3)
    yield Evict(pick_index=any_place(random), count=random.randrange(3))
    yield Admit(count=random.randrange(3), take_tokens=random.randrange(1, 8))
    yield Send()
    for _ in range(3):
        yield Insert(pick_index=any_place(random))
    yield Send()
    for _ in range(2):
        yield from caught_up()
        yield Play(actions_count=59)
        yield Play(actions_count=59)
        yield Process(count=3)
        yield Send()
    yield Die(rank=random.randrange(RANKS_MAX), all_die=random.randrange(2) == 0)


def stretched(random: Random) -> Iterator[AnyStep]:
    """Ask for more and more room between the ends, from which values were just given up."""
    yield from _crammed(random)
    yield Process(count=3)
    yield Evict(pick_index=any_place(random), count=random.randrange(3))
    yield from _stretch(random, 1)
    yield Send()
    yield from later(random)


def _crammed(random: Random) -> Iterator[AnyStep]:
    """Have as many values as there is room for, and nothing promised."""
    for _ in range(random.randint(2, 5)):
        yield Admit(count=1, prompt_tokens=random.randrange(4, 20), take_tokens=31)
        yield Send()
        yield Extend(pick_index=any_place(random), count=3, tokens=random.randrange(4, 24))
        yield Launch(count=ALL)
        yield Record()
        yield Advance(pick_index=0, count=3)
        yield Insert(pick_index=any_place(random))
        yield Insert(pick_index=any_place(random))
        yield Process(count=3)
        yield Send()


def _stretch(random: Random, wanted: int) -> Iterator[AnyStep]:
    """Ask for more and more room in one band."""
    units = random.randrange(1, 8)
    while units <= STRETCHED_UNITS_MAX:
        yield Relief(units=tuple(units if band == wanted else 0 for band in range(BANDS_MAX)))
        units += random.randint(1, 2)


def _misuses(random: Random) -> Iterator[AnyStep]:
    """Ask for something wrong that lies close, some times."""
    for _ in range(3):
        index = FIRST_CLOSE_INDEX + random.randrange(len(CLOSE_MISUSES))
        yield Misuse(kind_index=index, pick_index=any_place(random))
