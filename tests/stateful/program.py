"""A scheduler's operations, drawn from a seed: the same seed gives the same batches.

They are drawn while one rank plays them, because a scheduler knows which of its requests live.
"""

from functools import cache
from random import Random

from kvd_proto.operations import (
    Admit,
    Advance,
    Free,
    Idle,
    Launch,
    Operation,
    Processed,
    Relief,
    Standing,
    Take,
)
from tests.stateful.ranks import CHUNK_TOKENS, CONTEXT_TOKENS, int32s, int64s, lone, stage

TIGHT = stage(rows=5, spare_bytes=1 << 13)


@cache
def batches(seed: int, count: int) -> list[list[Operation]]:
    """Return batches of a scheduler that mostly knows what it does: some names are wrong.

    A wrong operation stops its batch, so a launch stands in a batch of its own.
    """
    random = Random(seed)
    rank = lone(TIGHT)
    newest = steps = processed = 0
    made: list[list[Operation]] = []
    while len(made) < count:
        batch: list[Operation] = []
        live = sorted(rank.world.engine.requests.names.row_of)
        for _ in range(random.randint(1, 4)):
            named = sorted(random.sample(live, k=min(len(live), random.randint(1, 2))))
            if not named or random.random() < 0.05:
                named = [random.randint(1, newest + 3)]
            kind = random.choice("aatttvvvffsri")
            if kind == "a":
                new = [newest + 1, newest + 2][: random.randint(1, 2)]
                newest = new[-1]
                live = [*live, *new]
                batch.append(_admit(random, new))
            elif kind == "f":
                live = [request for request in live if request not in named]
                batch.append(Free(int64s(named)))
            else:
                batch.append(_grow(random, kind, named))
        more: list[list[Operation]] = [batch]
        if random.random() < 0.3:
            steps += 1
            more.append([Launch(steps, 0)])
        if processed < steps and random.random() < 0.3:
            processed += 1
            more.append([Processed(processed)])
        for operations in more:
            rank.send(*operations)
        made += more
    return made[:count]


def _grow(random: Random, kind: str, named: list[int]) -> Operation:
    if kind == "v":
        return Advance(int64s(named), random.choice((1, 4)))
    if kind == "s":
        return Standing(int64s(named))
    if kind == "r":
        return Relief(tuple(random.randint(0, 9) for _ in range(4)))
    if kind == "i":
        return Idle()
    named_or_standing = int64s(named) if random.random() < 0.8 else b""
    return Take(named_or_standing, random.choice((1, 1, 4, CHUNK_TOKENS)))


def _admit(random: Random, ids: list[int]) -> Admit:
    prompts = [random.randint(1, CONTEXT_TOKENS // 4) for _ in ids]
    news = [random.randint(0, CONTEXT_TOKENS // 4) for _ in ids]
    takes = [random.randint(1, min(prompt, CHUNK_TOKENS)) for prompt in prompts]
    return Admit(
        int64s(ids), int32s(prompts), int32s(news), int32s(takes) if random.random() < 0.6 else b""
    )


def honest_batches(count: int) -> list[list[Operation]]:
    """Return batches of a scheduler that makes no mistakes and whose requests come and go."""
    made: list[list[Operation]] = []
    for number in range(count):
        request = number + 1
        batch: list[Operation] = [Processed(number)] if number else []
        if number >= 4:
            batch.append(Free(int64s([request - 4])))
        batch += [
            Advance(int64s([request - 1]), 16),
            Advance(int64s([request - 2]), 1),
        ][: min(number, 2)]
        batch.append(
            Admit(int64s([request]), int32s([24]), int32s([20]), int32s([16]), CHUNK_TOKENS)
        )
        if number:
            batch.append(Take(int64s([request - 1]), 1))
        batch.append(Launch(request, 0))
        made.append(batch)
    return made
