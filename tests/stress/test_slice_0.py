"""Part 0 of a slice of the long sweep; the parts are files so that they run side by side."""

import pytest

from tests.stress.slices import check_slice, shapes_of


@pytest.mark.slow
@pytest.mark.parametrize("shape", shapes_of(0, 3))
def test_a_seed_is_clean(shape: str) -> None:
    check_slice(shape, seed=100 + 0)
