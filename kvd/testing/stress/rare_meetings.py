"""Meetings that need one narrow situation each, which hardly anything else brings about."""

from collections.abc import Iterator
from random import Random
from typing import Final

from kvd.testing.stress.meeting_parts import (
    ALL,
    BANDS_MAX,
    SQUEEZED_UNITS,
    any_place,
    caught_up,
    fill,
    later,
    loads,
    long_values,
    losses,
    reports,
    room_in,
    take,
    values,
)
from kvd.testing.stress.misuse import CLOSE_MISUSES, FIRST_CLOSE_INDEX
from kvd.testing.stress.program import (
    RANKS_MAX,
    Admit,
    AdmitElsewhere,
    Advance,
    AnyStep,
    Die,
    EndTransfer,
    Evict,
    Extend,
    FailCopy,
    Free,
    Hold,
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
    Publish,
    Record,
    Relief,
    Send,
)

_FORWARDS_FIRST: Final = 1
"""Place in `kvd.testing.stress.pace.FAVOURS`."""
_POSTS: Final = 3
_REQUESTS: Final = 8
"""At least as many as any shape runs at once."""
_SEND_SLOT_INDEX: Final = FIRST_CLOSE_INDEX + len(CLOSE_MISUSES)
"""What kind of misuse sends a slot."""
_STRETCHED_UNITS_MAX: Final = 24
"""How much is asked for at last where more and more room is made."""


def slots_received_before_a_launch(random: Random) -> Iterator[AnyStep]:
    """Have peers write slots that were handed out before any launch has cleared them."""
    yield from fill(random)
    yield Launch(count=ALL)
    yield Record()
    yield Process(count=3)
    yield Process(count=3)
    yield Free(pick_index=any_place(random), count=random.randint(1, 2))
    yield Send()
    yield Admit(prompt_tokens=random.randrange(1, 12), take_tokens=random.randrange(1, 12))
    yield Send()
    first = random.randrange(_REQUESTS)
    for place in range(first, _REQUESTS):
        yield Hold(pick_index=place, count=5, band=random.randrange(2))
    yield Send()
    for _ in range(first, _REQUESTS):
        yield Publish(pick_index=0)
    yield Send()
    yield LetGo(pick_index=any_place(random))
    for rank in range(RANKS_MAX):
        yield Play(actions_count=random.randrange(60), favour_index=random.randrange(10))
        yield from caught_up()
        if random.randrange(2):
            yield LetGo(pick_index=rank)
    for _ in range(random.randrange(4)):
        yield from reports(random)
    yield Launch(count=ALL)
    yield Record()
    yield from later(random)
    yield from reports(random)
    yield Launch(count=ALL)


def sent_and_left_behind(random: Random) -> Iterator[AnyStep]:
    """Have a band move away from all that a peer reads of it, and let the transfer end or be lost.

    Then nothing changes but what is known of bytes that belong to no band.
    """
    yield from fill(random)
    yield from values(random)
    yield Insert(pick_index=any_place(random))
    yield Process(count=3)
    yield Send()
    for place in range(_POSTS):
        yield Post(pick_index=place, count=random.randrange(2), band=random.randrange(1, 6))
    yield Send()
    yield Evict(count=2)
    yield from fill(random)
    yield Free(pick_index=any_place(random), count=random.randrange(3))
    yield Process(count=3)
    yield Process(count=3)
    yield Send()
    for _ in range(random.randint(2, 6)):
        yield _asked_of_one_band(random)
    yield Send()
    if random.randrange(2):
        yield from _ends(lost=True)
    for place in range(_POSTS):
        yield LetGo(pick_index=place)
    yield from caught_up()
    yield Play(actions_count=59)
    yield from _ends(lost=False)


def _ends(*, lost: bool) -> Iterator[AnyStep]:
    """Have transfers end one after the other, each by an entry of its own."""
    for place in range(_POSTS):
        for rank in range(RANKS_MAX):
            # One that is over is gone from its rank, one that is lost is still there.
            yield EndTransfer(
                pick_index=place if lost else 0, rank=rank, failed=lost, unproven=lost
            )
        yield Relief()
        yield Send()


def moved_into_what_was_read(random: Random) -> Iterator[AnyStep]:
    """Have bands move into bytes that others moved away from, while a forward still reads there.

    It writes hardly anything, and nothing pends: nobody has a reason to wait for it before.
    """
    yield from fill(random)
    yield Launch(count=ALL)
    yield Record()
    yield Advance(pick_index=0, count=3)
    yield Advance(pick_index=4, count=3)
    yield Process(count=3)
    yield Free(pick_index=any_place(random), count=random.randrange(3))
    yield Send()
    launches_count = random.choice((1, 1, 2, 3))
    for _ in range(launches_count):
        yield Launch(pick_index=any_place(random))
        yield Record()
    yield Send()
    for _ in range(random.randint(4, 10)):
        yield _asked_of_one_band(random)
        if launches_count > 1 and random.randrange(4) == 0:
            yield Process()
        yield Send()
    yield from later(random)


def _asked_of_one_band(random: Random) -> Relief:
    wanted, units = random.randrange(BANDS_MAX), random.choice(SQUEEZED_UNITS)
    return room_in(wanted, units)


def failed_and_died(random: Random) -> Iterator[AnyStep]:
    """Let ranks die once a load has failed and everything else is over."""
    yield from long_values(random)
    yield from loads(random, 2)
    yield from caught_up()
    for _ in range(3):
        yield Play(actions_count=59)
    yield FailCopy(pick_index=random.randrange(2), rank=random.randrange(RANKS_MAX))
    for _ in range(3):
        yield Launch(count=ALL)
        yield Record()
        yield Process(count=3)
        yield Send()
        yield from caught_up()
        yield Play(actions_count=59)
        yield Play(actions_count=59)
    yield Die(rank=random.randrange(RANKS_MAX), all_die=random.randrange(2) == 0)


def processed_and_died(random: Random) -> Iterator[AnyStep]:
    """Let ranks die when forwards are over, and little of what was decided beside them has run."""
    yield from fill(random)
    yield Launch(count=ALL)
    yield Record()
    yield Process(count=3)
    yield Send()
    yield from caught_up()
    yield Play(actions_count=59)
    yield Launch(count=ALL)
    yield Record()
    yield Insert(pick_index=any_place(random))
    yield Send()
    yield Launch(count=ALL)
    yield Record()
    for _ in range(2):
        yield Process()
        yield Send()
    yield from caught_up()
    yield Play(actions_count=random.randrange(6), favour_index=_FORWARDS_FIRST)
    yield Die(rank=random.randrange(RANKS_MAX), all_die=random.randrange(2) == 0)


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
        yield Misuse(kind_index=_SEND_SLOT_INDEX, pick_index=any_place(random))
    yield from later(random)
    yield Process(count=3)


def admitted_elsewhere_under_a_launch(random: Random) -> Iterator[AnyStep]:
    """Have another program be given slots behind a launch that was not told yet."""
    yield Admit(count=random.randrange(2), take_tokens=4)
    yield Send()
    for _ in range(random.randint(1, 3)):
        yield Launch(pick_index=any_place(random), count=ALL)
        if random.randrange(2):
            yield Record()
        for _ in range(random.randint(1, 2)):
            yield AdmitElsewhere(
                prompt_tokens=random.randrange(16),
                new_tokens=random.randrange(16),
                take_tokens=random.randrange(12),
            )
        yield Send()
        yield Misuse(kind_index=_SEND_SLOT_INDEX, pick_index=any_place(random))
        yield Process()
    yield from later(random)
    yield Free(pick_index=any_place(random), count=random.randrange(3))
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
    while units <= _STRETCHED_UNITS_MAX:
        yield room_in(wanted, units)
        units += random.randint(1, 2)


def _misuses(random: Random) -> Iterator[AnyStep]:
    """Ask for something wrong that lies close, some times."""
    for _ in range(3):
        index = FIRST_CLOSE_INDEX + random.randrange(len(CLOSE_MISUSES))
        yield Misuse(kind_index=index, pick_index=any_place(random))
