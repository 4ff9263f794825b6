"""Programs drawn from a seed: which steps come how often, and with which numbers.

A seed draws a profile, which says what the program leans to, and then step after step. Nothing
depends on what the steps do, so the same seed gives the same steps for ever; how many of them are
played is up to who plays them. Most steps come as short runs that belong together, such as a decode
pass, so that programs come far; the rest comes alone, in any order.
"""

import zlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from msgspec.structs import fields

from kvd.testing.stress.meeting_parts import BANDS_MAX, caught_up
from kvd.testing.stress.meetings import DEATHS, MEETINGS, NAMED_MEETINGS, Meeting
from kvd.testing.stress.program import (
    RANKS_MAX,
    RANKS_MIN,
    STEP_TYPES,
    Abort,
    Admit,
    AdmitElsewhere,
    Advance,
    AnyStep,
    AskAgain,
    Backup,
    CancelHold,
    CheckTables,
    Decode,
    Die,
    Elsewhere,
    EndTransfer,
    Evict,
    Extend,
    FailCopy,
    Follow,
    Free,
    GiveUp,
    Hold,
    Idle,
    Insert,
    Launch,
    Lead,
    LetGo,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Misuse,
    Play,
    Post,
    Process,
    Program,
    Publish,
    Record,
    Relief,
    ResetSink,
    Rest,
    Send,
    Stand,
)

PERMILLE: Final = 1000

WEIGHTS: Final[dict[type[AnyStep], int]] = {
    Admit: 60,
    AskAgain: 60,
    GiveUp: 20,
    Extend: 40,
    Decode: 50,
    Stand: 30,
    Advance: 60,
    Free: 15,
    Elsewhere: 6,
    AdmitElsewhere: 6,
    Launch: 80,
    Record: 50,
    Abort: 10,
    Process: 60,
    Insert: 15,
    Evict: 40,
    LoadReserve: 12,
    LoadName: 8,
    LoadSubmit: 12,
    LoadCancel: 8,
    Backup: 15,
    FailCopy: 16,
    Hold: 8,
    Publish: 14,
    CancelHold: 2,
    Post: 8,
    LetGo: 25,
    EndTransfer: 50,
    Relief: 8,
    ResetSink: 1,
    Idle: 8,
    Send: 90,
    Misuse: 25,
    Play: 110,
    Follow: 90,
    Lead: 6,
    CheckTables: 3,
    Rest: 3,
    Die: 0,
}
"""How often each step comes alone, of all that do."""

PROFILES: Final[dict[str, dict[type[AnyStep], int]]] = {
    "even": {},
    "crowded": {Admit: 200, AskAgain: 80, Free: 8, Insert: 10, Extend: 80},
    "sliding": {Decode: 160, Advance: 160, Launch: 140, Process: 120, Stand: 60},
    "cache": {Insert: 80, Evict: 25, Admit: 110, Free: 4},
    "copies": {
        Backup: 60,
        LoadReserve: 60,
        LoadName: 30,
        LoadSubmit: 50,
        Insert: 50,
        FailCopy: 40,
        Misuse: 90,
    },
    "transfers": {Hold: 60, Publish: 60, Post: 60, LetGo: 60, EndTransfer: 160, CancelHold: 8},
    "stuck": {Hold: 40, Publish: 40, Post: 60, LetGo: 4, EndTransfer: 20, Admit: 120, Extend: 90},
    "death": {Die: 16, Insert: 60, Process: 100, Send: 140},
    "rearranging": {Relief: 70, Idle: 40, Free: 50, Admit: 110, LoadReserve: 30},
    "meetings": {Extend: 80, Relief: 40, Play: 60, Follow: 60, Misuse: 60},
    "tangled": {Abort: 16, Launch: 160, Process: 30, Misuse: 80, Follow: 40, Play: 40},
}
"""What each profile weighs otherwise."""

RANGES: Final[dict[str, tuple[int, int]]] = {
    "pick_index": (64, 200),
    "first_victim_index": (64, 300),
    "count": (8, 400),
    "prompt_tokens": (64, 50),
    "new_tokens": (32, 250),
    "tokens": (32, 300),
    "take_tokens": (32, 250),
    "chunk_tokens": (64, 700),
    "reserve_batches": (12, 600),
    "growth_permille": (PERMILLE, 800),
    "victims_count": (4, 700),
    "band": (8, 200),
    "bands_count": (4, 300),
    "windows_count": (4, 500),
    "rank": (RANKS_MAX, 200),
    "kind_index": (64, 0),
    "actions_count": (60, 0),
    "favour_index": (10, 400),
}
"""Of each number: one more than the highest, and permille of the draws that are plain 0."""

SMALL: Final = ("prompt_tokens", "new_tokens", "tokens", "take_tokens")
"""Numbers that are mostly small."""

FLAGS: Final[dict[str, int]] = {
    "unstated": 200,
    "standing": 300,
    "silent": 300,
    "value": 400,
    "request": 300,
    "failed": 350,
    "unproven": 600,
    "all_die": 400,
}
"""Of each flag: permille of the draws in which it is set."""

RELIEF_UNITS: Final = (0, 0, 0, 1, 2, 3, 5, 9, 14, 30)

LOAD_MISUSES: Final = (7, 9, 10)
"""Places in `kvd.testing.stress.misuse.MISUSES` of what is wrong while a load is open."""

RUN_PERMILLE: Final = 250
MEETING_PERMILLE: Final = 800
"""Of how many draws a short run of steps comes of; the latter where these are meetings."""


def program_of(shape: str, seed: int) -> Program:
    """Return the program of a seed without its steps: who takes part, and how."""
    random = _random(shape, seed, "program")
    return Program(
        shape=shape,
        seed_index=seed,
        ranks_count=RANKS_MIN
        + (random.randrange(6) == 0) * random.randint(1, RANKS_MAX - RANKS_MIN),
        leader=random.randrange(3) == 0,
        overlap=random.randrange(3) > 0,
    )


def profile_of(shape: str, seed: int) -> str:
    """Return the name of the profile that a seed draws."""
    names = list(PROFILES)
    return names[_random(shape, seed, "profile").randrange(len(names))]


def steps_of(shape: str, seed: int, *, profile: str | None = None) -> Iterator[AnyStep]:
    """Yield the steps of a seed, without an end.

    A profile may be the name of a meeting as well: then that happens most of the time.
    """
    random = _random(shape, seed, "steps")
    name = profile_of(shape, seed) if profile is None else profile
    weights = {**WEIGHTS, **PROFILES.get(name, PROFILES["meetings"])}
    kinds, shares = list(weights), list(weights.values())
    runs, permille = _runs_of(name)
    while True:
        if random.randrange(PERMILLE) < permille:
            yield from runs[random.randrange(len(runs))](random)
        else:
            yield _drawn(random.choices(kinds, shares)[0], random)


def _runs_of(profile: str) -> tuple[Sequence[Meeting], int]:
    """Return runs of steps, and permille of the draws that are one."""
    if profile in NAMED_MEETINGS:
        return (*MEETINGS, *[NAMED_MEETINGS[profile]] * len(MEETINGS)), MEETING_PERMILLE
    if profile == "meetings":
        return MEETINGS, MEETING_PERMILLE
    return (*_RUNS, *DEATHS) if profile == "death" else _RUNS, RUN_PERMILLE


def _random(shape: str, seed: int, what: str) -> Random:
    return Random(zlib.crc32(f"{what} of {shape}".encode()) << 32 | seed)


def _drawn(kind: type[AnyStep], random: Random) -> AnyStep:
    """Return a step of a kind with numbers drawn."""
    arguments: dict[str, Any] = {}
    for name in _NAMES[kind]:
        if name in FLAGS:
            arguments[name] = random.randrange(PERMILLE) < FLAGS[name]
        elif name == "units":
            arguments[name] = tuple(random.choice(RELIEF_UNITS) for _ in range(BANDS_MAX))
        else:
            end, plain_permille = RANGES[name]
            plain = random.randrange(PERMILLE) < plain_permille
            if name in SMALL and not plain:
                end = random.randrange(1, end)
            arguments[name] = 0 if plain else random.randrange(end)
    return kind(**arguments)


# ---- runs of steps that belong together -----------------------------------------------------


def _move_on(random: Random) -> Iterator[AnyStep]:
    """Let ranks and devices come some way."""
    for _ in range(random.randint(1, 3)):
        yield _drawn(random.choice((Play, Play, Follow)), random)


def _pass(random: Random) -> Iterator[AnyStep]:
    """Decode: what was computed, one token more, the next forward."""
    yield Advance(standing=True)
    if random.randrange(30) == 0:
        yield _drawn(Misuse, random)
    yield _drawn(Decode, random)
    yield Process(count=random.randrange(2))
    yield Send()
    yield _drawn(Launch, random)
    if random.randrange(4):
        yield Record()
    yield from _move_on(random)


def _prefill(random: Random) -> Iterator[AnyStep]:
    """Somebody new, with a first chunk, a forward over it, and a place in the standing set."""
    yield _drawn(random.choice((Admit, AskAgain)), random)
    if random.randrange(2):
        yield _drawn(Stand, random)
    yield Send()
    yield Launch(count=random.randrange(6), pick_index=random.randrange(64))
    yield Record()
    yield Advance(count=3, pick_index=random.randrange(64))
    if random.randrange(2):
        yield _drawn(Extend, random)


def _grow(random: Random) -> Iterator[AnyStep]:
    """Everybody takes as much as he may, and computes it."""
    yield Extend(count=3, pick_index=random.randrange(64), tokens=random.randrange(8, 40))
    yield Send()
    yield Launch(count=7)
    yield Record()
    yield Advance(count=3, pick_index=random.randrange(64))
    yield Advance(count=3, pick_index=random.randrange(64))
    yield Process(count=random.randrange(4))


def _keep(random: Random) -> Iterator[AnyStep]:
    """Make a value of a request, and let what was running be over."""
    yield Insert(pick_index=random.randrange(64))
    yield Process(count=3)
    yield Send()
    yield from _move_on(random)


def _load(random: Random) -> Iterator[AnyStep]:
    """Load, from the reservation to the start."""
    yield _drawn(LoadReserve, random)
    yield Send()
    if random.randrange(4) == 0:
        yield Misuse(kind_index=random.choice(LOAD_MISUSES), pick_index=random.randrange(64))
    if random.randrange(3) == 0:
        yield _drawn(Relief, random)
    if random.randrange(2):
        yield _drawn(LoadName, random)
    yield LoadSubmit(pick_index=random.randrange(64))
    yield from _move_on(random)


def _send(random: Random) -> Iterator[AnyStep]:
    """Send a value, and at times have it moved or given up meanwhile."""
    yield Process(count=3)
    yield _drawn(Post, random)
    yield Send()
    if random.randrange(2):
        yield _drawn(random.choice((Evict, Relief, Free)), random)
    yield LetGo(pick_index=random.randrange(64))
    yield from _move_on(random)
    for rank in range(RANKS_MAX):
        yield EndTransfer(pick_index=random.randrange(64), rank=rank)


def _receive(random: Random) -> Iterator[AnyStep]:
    """Receive into a request or a value."""
    yield _drawn(Hold, random)
    if random.randrange(3) == 0:
        yield _drawn(Relief, random)
    yield Process(count=3)
    yield Publish(pick_index=random.randrange(64))
    yield Send()
    yield LetGo(pick_index=random.randrange(64))
    yield from _move_on(random)
    for rank in range(RANKS_MAX):
        yield EndTransfer(pick_index=random.randrange(64), rank=rank)


def _catch_up(random: Random) -> Iterator[AnyStep]:
    """Everybody does what there is to do, and reports what is over."""
    yield Process(count=3)
    yield Send()
    yield from caught_up()
    yield Play(actions_count=59)
    yield Send()


def _die(random: Random) -> Iterator[AnyStep]:
    """Die at times, behind something that may survive it."""
    yield Insert(pick_index=random.randrange(64))
    yield from _catch_up(random)
    yield from _catch_up(random)
    if random.randrange(6) == 0:
        yield _drawn(Die, random)


def _make_way(random: Random) -> Iterator[AnyStep]:
    """Somebody ends under a forward, and what he left is taken."""
    yield _drawn(Launch, random)
    yield _drawn(random.choice((Free, Evict)), random)
    yield _drawn(random.choice((Admit, Extend, Relief)), random)
    yield Send()


_NAMES: Final = {kind: tuple(field.name for field in fields(kind)) for kind in STEP_TYPES}
"""The arguments of each step."""

_RUNS: Final = (
    _move_on,
    _pass,
    _pass,
    _pass,
    _prefill,
    _prefill,
    _grow,
    _grow,
    _keep,
    _load,
    _send,
    _receive,
    _catch_up,
    _make_way,
    _die,
)

assert len(WEIGHTS) == len(STEP_TYPES), "a step has no weight"
