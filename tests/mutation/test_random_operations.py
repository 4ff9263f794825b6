"""Operations on values, copies and transfers, drawn from seeds, on a rank's applier: no race."""

import pytest

from tests.mutation.random_operations import RandomOperations

KINDS = ("backup", "load_submit", "post", "publish", "evict", "launch", "relief", "released")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_nothing_races(seed: int) -> None:
    operations = RandomOperations(seed)

    operations.play(250)

    assert sum(operations.counts.get(kind, 0) for kind in KINDS) > 30
    # One seed alone need not see each kind.
    assert sum(bool(operations.counts.get(kind)) for kind in KINDS) >= 6


@pytest.mark.sweep
@pytest.mark.parametrize("first_seed", range(1_000, 1_400, 20))
def test_nor_does_it_for_long(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        RandomOperations(seed).play(400)
