"""Long random lives of requests in arenas so small that everything rearranges, waits and retracts.

The scheduler drawn here mostly keeps its word, as real ones do, so that arenas stay full. Each seed
is one arena and one life; what never happened in any of them would not have been tested.
"""

from collections import Counter
from random import Random

import pytest

from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Verdict
from tests.stateful.chains import World
from tests.stateful.request_model import Held, RequestModel

CONTEXT_TOKENS = 64
KINDS = ("f", "wf", "sf", "swf", "wvf", "swvf", "swvuf")
"""Bands low to high: state, windows, full."""


def _world(random: Random) -> World:
    kinds = random.choice(KINDS)
    page_tokens = random.choice((1, 2, 4, 16))
    lifetimes = tuple(
        {"f": Lifetime.FULL, "s": Lifetime.STATE}.get(kind, Lifetime.WINDOW) for kind in kinds
    )
    state_scale = random.choice((1, 8, 8)) * page_tokens
    unit_bytes = tuple(
        random.choice((3, 5, 7, 8, 13))
        * (state_scale if lifetime is Lifetime.STATE else page_tokens)
        for lifetime in lifetimes
    )
    longest_bytes = sum(
        unit if lifetime is Lifetime.STATE else unit * -(-CONTEXT_TOKENS // page_tokens)
        for unit, lifetime in zip(unit_bytes, lifetimes, strict=True)
    )
    return World(
        arena_bytes=int(longest_bytes * random.choice((0.45, 0.8, 1.2))) + 2 * max(unit_bytes),
        unit_bytes=unit_bytes,
        lifetimes=lifetimes,
        window_tokens=tuple(
            random.choice((3, 8, 20)) if lifetime is Lifetime.WINDOW else 0
            for lifetime in lifetimes
        ),
        page_tokens=page_tokens,
        context_tokens=CONTEXT_TOKENS,
        row_count=random.choice((5, 12)),
    )


def _step(model: RequestModel, random: Random) -> None:
    live = sorted(model.held)
    if random.random() < 0.25 or not live:
        model.admit(
            prompt=random.randint(1, random.choice((8, 40))),
            new=random.randint(0, 24),
            chunk=random.choice((0, 0, CONTEXT_TOKENS)),
            growth_permille=random.choice((0, 0, 500, 1000)),
            again=random.random() < 0.5,
        )
        return
    named = random.sample(live, random.randint(1, len(live)))
    kind = random.choices("tflrcm", weights=(70, 4, 20, 2, 2, 3))[0]
    if kind == "t":
        _forward(model, random, named)
    elif kind == "f":
        model.free(named if random.random() < 0.3 else named[:2])
    elif kind == "l":
        model.lapse(named)
    elif kind == "r":
        model.relieve(tuple(random.randint(0, 6) for _ in model.chain.bands))
    elif kind == "c":
        model.compact(random.choice((1, 3, 100)))
    else:
        model.chain.merge_freed()


def _forward(model: RequestModel, random: Random, named: list[int]) -> None:
    """Take for requests that are not at their end, and state what those that remain computed."""
    growing = {
        request: _tokens(model.held[request], random)
        for request in named
        if model.held[request].tokens < model.held[request].total_tokens
    }
    if not growing:
        return
    victims = random.sample(sorted(model.held), random.randint(0, len(model.held)))
    model.take(list(growing), list(growing.values()), victims if random.random() < 0.5 else [])
    open_tokens = {
        request: model.held[request].tokens - model.held[request].computed_tokens
        for request in growing
        if request in model.held
    }
    advancing = {request: tokens for request, tokens in open_tokens.items() if tokens}
    if advancing:
        model.advance(list(advancing), list(advancing.values()))
    ended = [
        request
        for request, held in model.held.items()
        if held.tokens >= held.total_tokens and random.random() < 0.5
    ]
    if ended:
        model.free(ended)


def _tokens(held: Held, random: Random) -> int:
    if held.prefilling:
        return min(held.chunk_tokens, held.prompt_tokens - held.tokens, random.choice((4, 64)))
    return 1


def _live(seed: int, *, steps: int) -> Counter[str]:
    """Play one life; return how often each rare thing happened."""
    print("seed", seed)
    random = Random(seed)
    model = RequestModel(_world(random))
    for _ in range(steps):
        _step(model, random)
        model.check()
    seen = Counter(model.chain.relief_counts)
    seen.update({verdict.name: count for verdict, count in model.verdicts.items()})
    seen.update(
        shrunk=model.shrunk_count,
        clipped=model.clipped_count,
        refused=model.refused_count,
        retracted=model.retracted_count,
        relocated=model.relocated_count,
        moved=model.memory.moved_units,
    )
    model.end()
    return seen


RARE = (
    "no_move",
    "relayout",
    *(verdict.name for verdict in Verdict),
    "clipped",
    "refused",
    "retracted",
    "relocated",
    "moved",
)


def test_an_end_is_compacted_for_a_life_that_grows_into_what_it_left() -> None:
    world = World(
        arena_bytes=276,
        unit_bytes=(2, 3),
        lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
        window_tokens=(8, 0),
        page_tokens=1,
        context_tokens=CONTEXT_TOKENS,
        chunk_tokens=40,
    )
    model = RequestModel(world)
    model.admit(prompt=40, new=24, again=False)
    model.take([1], [40], [])
    model.advance([1], [40])  # 8 window pages stay, at the frontier
    model.lapse([1])
    model.admit(prompt=8, new=30, again=False)
    model.take([2], [8], [])
    model.advance([2], [8])
    for _ in range(30):
        model.take([2], [1], [])
        model.advance([2], [1])
        model.check()
    assert model.chain.relief_counts["flush_ends"] > 0
    assert model.memory.moved_units > 0
    model.end()


def test_short_lives_meet_every_verdict_relocation_and_retraction() -> None:
    seen: Counter[str] = Counter()
    for seed in range(32, 44):
        seen.update(_live(seed, steps=80))
    assert not [name for name in RARE if not seen[name]], seen


@pytest.mark.sweep
@pytest.mark.parametrize("first_seed", range(1000, 1400, 40))
def test_long_lives_leave_nothing_behind(first_seed: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 40):
        seen.update(_live(seed, steps=150))
    assert not [name for name in RARE if not seen[name]], seen
