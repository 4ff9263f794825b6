"""A slice of the long sweep: every shape, a few hundred operations each."""

from kvd.testing.stress.shapes import SHAPES
from kvd.testing.stress.sweep import run_seed

OPERATIONS_COUNT = 250


def check_slice(shape: str, seed: int) -> None:
    """Play a seed on a shape; raises the failure of a check."""
    result = run_seed(shape, seed, OPERATIONS_COUNT)
    print(f"shape {shape}, seed {seed}: {result.operations_count} operations")
    if result.failure is not None:
        raise result.failure
    assert result.operations_count == OPERATIONS_COUNT


def shapes_of(part: int, parts_count: int) -> list[str]:
    """Return a part of all shapes, for a file that runs beside others."""
    return list(SHAPES)[part::parts_count]
