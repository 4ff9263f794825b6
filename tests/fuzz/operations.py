"""Operations that suit a group's state, most of them: the starting points of damaged batches."""

from dataclasses import dataclass
from random import Random
from typing import Any

from kvd_proto.operations import (
    Admit,
    Advance,
    BackupSubmit,
    CancelHold,
    Evict,
    Free,
    Hold,
    Idle,
    Insert,
    Launch,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Post,
    Processed,
    Publish,
    Relief,
    ResetSink,
    Standing,
    Take,
    WriteSet,
)
from tests.fuzz.world import Seat, World, tree_of
from tests.proto.samples import int32s, int64s


@dataclass(frozen=True)
class Known:
    """What a rank knows of its group's books, or believes to know."""

    live: list[int]
    highest_id: int
    pages: list[int]
    values: list[int]
    launched_count: int
    position: int


def known(world: World, seat: Seat) -> Known:
    """Return what the books say."""
    engine = world.engine(seat)
    return Known(
        live=list(engine.requests.names.row_of),
        highest_id=engine.requests.names.highest_id,
        pages=engine.chain.owner.bound_ids().tolist(),
        values=list(engine.requests.values.of_number),
        launched_count=engine.steps.launched_count,
        position=seat.position,
    )


def suiting(books: Known, rng: Random) -> list[Any]:
    """Return the trees of a few operations that this rank might send next."""
    some = rng.sample(books.live, min(len(books.live), rng.randint(1, 3))) or [1]
    first = books.highest_id + 1
    number = rng.randrange(1, 9)
    page = rng.choice(books.pages or [1])
    step = books.launched_count + 1
    value = rng.choice((number, 1 + max(books.values, default=0)))
    made: list[Operation] = [
        _admit(first, rng, some),
        Take(int64s(*some), rng.choice((1, 1, 4)), victims=int64s(*some[:1])),
        Advance(int64s(*some), rng.choice((1, 4))),
        Take(),
        Advance(),
        Free(int64s(*some[:1])),
        Relief((0, rng.randrange(4), rng.randrange(9))),
        Standing(int64s(*some[:1]), b""),
        Launch(step, books.position, WriteSet.REQUESTS, int64s(*some)),
        Processed(max(1, step - 1)),
        Idle(),
        ResetSink(),
        Insert(value, some[0]),
        Evict(int64s(number)),
        LoadReserve(number, rng.choice(books.values or [1]), (0, 1, 0)),
        LoadName(number, 1, int64s(page)),
        LoadSubmit(number, (b"", int32s(0), b"")),
        LoadCancel(number),
        BackupSubmit(number, (b"", b"", int64s(page)), (b"", b"", int32s(3))),
        Hold(number, (b"", b"", int64s(page))),
        Publish(number),
        Post(number, (b"", b"", int64s(page))),
        CancelHold(number),
    ]
    chosen = rng.choices(made, k=rng.choice((0, 1, 1, 2, 4)) if rng.random() < 0.998 else 1000)
    return [tree_of(one) for one in chosen]


def _admit(first: int, rng: Random, victims: list[int]) -> Admit:
    count = rng.choice((1, 2))
    prompts = [rng.randint(1, 40) for _ in range(count)]
    return Admit(
        int64s(*range(first, first + count)),
        int32s(*prompts),
        int32s(*(rng.randint(0, 20) for _ in range(count))),
        int32s(*(min(prompt, 16) for prompt in prompts)) if rng.random() < 0.5 else b"",
        reserve_batches=rng.choice((0, 0, 3)),
        victims=int64s(*victims) if rng.random() < 0.2 else b"",
    )
