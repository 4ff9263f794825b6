"""Digests of runs, one per shape: what was decided, and the order of all modelled actions.

``python -m tests.stress.golden`` writes them anew, after a change that is meant to decide or to
draw otherwise.
"""

import json
from pathlib import Path

from kvd.testing.stress.shapes import SHAPES
from kvd.testing.stress.sweep import run_seed

PATH = Path(__file__).with_name("golden.json")
SEED = 7
OPERATIONS_COUNT = 60


def digest_of(shape: str) -> str:
    """Return the digest of a short run on a shape."""
    result = run_seed(shape, SEED, OPERATIONS_COUNT, profile="even")
    assert result.failure is None
    return result.digest


def write() -> None:
    """Write the digests of all shapes."""
    digests = {shape: digest_of(shape) for shape in SHAPES}
    PATH.write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
