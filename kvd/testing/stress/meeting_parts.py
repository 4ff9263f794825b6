"""What meetings are made of: room that is taken, values that are made, units that are moved."""

from collections.abc import Iterator
from random import Random
from typing import Final

from kvd.testing.stress.program import (
    RANKS_MAX,
    Admit,
    Advance,
    AnyStep,
    Decode,
    EndTransfer,
    Extend,
    Follow,
    Idle,
    Insert,
    Launch,
    LoadReserve,
    LoadSubmit,
    Play,
    Process,
    Record,
    Relief,
    Send,
)

PICKS: Final = 64
ALL: Final = 7
"""A count that names everybody there is."""
BANDS_MAX: Final = 5
RELIEF_UNITS: Final = (0, 0, 0, 2, 4, 8, 12, 20)
SQUEEZED_UNITS: Final = (44, 34, 26, 20, 15, 11, 8, 6, 4, 3, 2)
"""How much is asked for where room is made, less and less."""


def any_place(random: Random) -> int:
    """Return a place among whatever there is."""
    return random.randrange(PICKS)


def fill(random: Random) -> Iterator[AnyStep]:
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
    yield Extend(pick_index=any_place(random), count=3, tokens=random.randrange(8, 32))
    yield Send()


def take(random: Random) -> Iterator[AnyStep]:
    """Hand out what was just given back, to whoever it may be."""
    match random.randrange(8):
        case 6 | 7:
            yield from squeeze(random)
        case 0:
            yield Extend(pick_index=any_place(random), count=3, tokens=random.randrange(4, 32))
            yield Extend(pick_index=any_place(random), count=3, tokens=random.randrange(4, 32))
        case 1:
            yield Admit(
                count=random.randrange(3),
                prompt_tokens=random.randrange(4, 48),
                take_tokens=random.randrange(1, 32),
            )
            yield Admit(prompt_tokens=random.randrange(4, 24), take_tokens=random.randrange(1, 24))
        case 2:
            yield relief(random)
        case 3:
            yield LoadReserve(pick_index=any_place(random), count=4, windows_count=3)
            yield LoadSubmit(pick_index=any_place(random))
        case 4:
            yield relief(random)
            yield Extend(pick_index=any_place(random), count=3, tokens=random.randrange(4, 32))
        case _:
            yield Decode()
            yield relief(random)
    yield Send()


def room_in(wanted: int, units: int) -> Relief:
    """Return a step that asks for room in one band."""
    return Relief(units=tuple(units if band == wanted else 0 for band in range(BANDS_MAX)))


def squeeze(random: Random, *, bands_count: int = BANDS_MAX) -> Iterator[AnyStep]:
    """Ask for less and less room in one of the first bands until some fits.

    That mostly moves what is there.
    """
    wanted = random.randrange(bands_count)
    for units in SQUEEZED_UNITS[random.randrange(3) :]:
        yield room_in(wanted, units)
    yield Send()


def relief(random: Random) -> AnyStep:
    """Return a step that makes room, or says that nothing is launched."""
    if random.randrange(5) == 0:
        return Idle()
    return Relief(units=tuple(random.choice(RELIEF_UNITS) for _ in range(BANDS_MAX)))


def values(random: Random) -> Iterator[AnyStep]:
    """Have some values, computed and settled."""
    yield Launch(count=ALL)
    yield Record()
    yield Advance(pick_index=any_place(random), count=3)
    yield Insert(pick_index=any_place(random))
    if random.randrange(2):
        yield Insert(pick_index=any_place(random))
    yield Process(count=3)
    yield Process(count=3)
    yield Send()


def long_values(random: Random) -> Iterator[AnyStep]:
    """Have some values that are longer than windows, so that they lack pages there."""
    yield Admit(count=1, prompt_tokens=random.randrange(24, 64), take_tokens=31)
    yield Send()
    for _ in range(random.randint(1, 3)):
        yield Extend(pick_index=any_place(random), count=3, tokens=31)
        yield Send()
        yield Launch(count=ALL)
        yield Record()
        yield Advance(pick_index=0, count=3)
        yield Advance(pick_index=4, count=3)
        yield Process(count=3)
        yield Send()
    yield Insert(pick_index=any_place(random))
    yield Insert(pick_index=any_place(random))
    yield Process(count=3)
    yield Send()


def loads(random: Random, count: int) -> Iterator[AnyStep]:
    """Load some times what values lack in their windows."""
    for _ in range(count):
        yield LoadReserve(pick_index=any_place(random), count=4, windows_count=3)
        yield LoadSubmit(pick_index=any_place(random))
    yield Send()


def later(random: Random) -> Iterator[AnyStep]:
    """Let ranks and devices come some way, or none."""
    if random.randrange(2):
        yield Play(actions_count=random.randrange(40))
        yield Follow(rank=random.randrange(RANKS_MAX), count=random.randrange(8))


def caught_up() -> Iterator[AnyStep]:
    """Have every rank do some parts of what the first one did."""
    for rank in range(RANKS_MAX):
        yield Follow(rank=rank, count=7)


def losses(random: Random) -> Iterator[AnyStep]:
    """Have every rank say that it knows nothing of the end of some transfer."""
    pick = any_place(random)
    for _ in range(2):
        for rank in range(RANKS_MAX):
            yield EndTransfer(pick_index=pick, rank=rank, failed=True, unproven=True)
    yield Send()


def reports(random: Random) -> Iterator[AnyStep]:
    """Have ranks say how transfers ended."""
    for rank in range(RANKS_MAX):
        yield EndTransfer(
            pick_index=any_place(random), rank=rank, failed=random.randrange(6) == 0, unproven=True
        )
    yield Send()
