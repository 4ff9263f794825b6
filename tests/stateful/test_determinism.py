"""The same operations give the same bytes: twice, and under any hash seed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stateful.program import TIGHT, batches
from tests.stateful.ranks import lone

ROOT = Path(__file__).parents[2]


def history(seed: int) -> str:
    """Return the digest of everything one rank is told."""
    rank = lone(TIGHT)
    for operations in batches(seed, 80):
        rank.send(*operations)
    return hashlib.sha256(b"".join(rank.replies)).hexdigest()


@pytest.mark.parametrize("seed", range(4))
def test_the_same_operations_give_the_same_bytes(seed: int) -> None:
    print("seed", seed)
    assert history(seed) == history(seed)


def test_other_operations_give_other_bytes() -> None:
    assert len({history(seed) for seed in range(4)}) == 4


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_bytes_do_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    code = "from tests.stateful.test_determinism import history; print(history(3))"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert printed.strip() == history(3)
