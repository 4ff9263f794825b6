"""Meetings that only happen in runs that ask for them by name.

Whatever else a seed draws stays what it was when one is added here.
"""

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
    long_values,
    reports,
    values,
)
from kvd.testing.stress.program import (
    RANKS_MAX,
    Admit,
    Advance,
    AnyStep,
    Die,
    EndTransfer,
    Evict,
    FailCopy,
    Free,
    Hold,
    Insert,
    Launch,
    LetGo,
    LoadReserve,
    LoadSubmit,
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
    yield Launch(pick_index=any_place(random))
    yield Record()
    yield Send()
    for _ in range(random.randint(4, 10)):
        yield _asked_of_one_band(random)
        yield Send()
    yield from later(random)


def _asked_of_one_band(random: Random) -> Relief:
    wanted, units = random.randrange(BANDS_MAX), random.choice(SQUEEZED_UNITS)
    return Relief(units=tuple(units if band == wanted else 0 for band in range(BANDS_MAX)))


def failed_and_died(random: Random) -> Iterator[AnyStep]:
    """Let ranks die once a load has failed and everything else is over."""
    yield from long_values(random)
    for _ in range(2):
        yield LoadReserve(pick_index=any_place(random), count=4, windows_count=3)
        yield LoadSubmit(pick_index=any_place(random))
    yield Send()
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
