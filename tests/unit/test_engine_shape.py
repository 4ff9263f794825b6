"""The numbers of a stage that its engine works with, apart from how they came about."""

import msgspec
import pytest

from kvd.engine.shape import StageShape, shape_of
from kvd_proto.memory import Lifetime
from tests.stateful.ranks import stage

STAGE = stage()


def test_a_shape_has_the_numbers_of_the_stage_that_was_built() -> None:
    shape = shape_of(STAGE)
    assert shape.geometry == STAGE.sized.geometry
    assert [band.lifetime for band in shape.bands] == [
        Lifetime.STATE,
        Lifetime.WINDOW,
        Lifetime.WINDOW,
        Lifetime.FULL,
    ]
    assert [band.window_tokens for band in shape.bands] == [0, 20, 8, 0]
    plan = STAGE.storage
    for name in ("page_tokens", "context_tokens", "row_count", "row_pages", "virtual_page_count"):
        assert getattr(shape, name) == getattr(plan, name)
    assert (shape.chunk_tokens, shape.step_tokens, shape.overlap) == (16, 1, STAGE.sized.overlap)


def test_a_shape_is_its_own_shape() -> None:
    shape = shape_of(STAGE)
    assert shape_of(shape) is shape


@pytest.mark.parametrize("field", StageShape.__struct_fields__)
def test_a_shape_comes_back_equal_from_json_and_names_all_its_fields(field: str) -> None:
    shape = shape_of(STAGE)
    encoded = msgspec.json.encode(shape)
    assert msgspec.json.decode(encoded, type=StageShape) == shape
    assert f'"{field}":'.encode() in encoded
