"""Reading a configuration field by field."""

import pytest

from kvd.declare.fields import ConfigFields
from kvd.errors import DeclareError, shown


def test_null_counts_as_absent() -> None:
    assert not ConfigFields({"head_dim": None}).has("head_dim")


@pytest.mark.parametrize("value", ["12", 12.0, True, [12], {}])
def test_a_count_of_another_type_is_refused_with_key_and_value(value: object) -> None:
    with pytest.raises(DeclareError) as caught:
        ConfigFields({"layers": value}, "text_config").count("layers")
    assert "text_config.layers" in caught.value.message
    assert repr(value) in caught.value.message


@pytest.mark.parametrize("value", [0, -3, 1 << 41, 10**30])
def test_a_count_out_of_range_is_refused_with_the_range(value: int) -> None:
    with pytest.raises(DeclareError, match=f"^layers is {value}: expected 1 to {1 << 40}$"):
        ConfigFields({"layers": value}).count("layers")


def test_an_absurdly_long_count_is_cut_short() -> None:
    with pytest.raises(DeclareError) as caught:
        ConfigFields({"layers": 10**4000}).count("layers")
    assert len(caught.value.message) < 120


def test_a_missing_count_is_named() -> None:
    with pytest.raises(DeclareError, match="hidden_size is missing"):
        ConfigFields({}).count("hidden_size")


def test_defaults_fill_only_what_is_absent_or_null() -> None:
    fields = ConfigFields({"a": 1, "b": None}).with_defaults({"a": 5, "b": 6, "c": 7})
    assert dict(fields.values) == {"a": 1, "b": 6, "c": 7}


@pytest.mark.parametrize("value", [1, "true", [True]])
def test_a_flag_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(DeclareError, match="use_it is"):
        ConfigFields({"use_it": value}).flag("use_it", default=False)


def test_a_wrong_item_of_a_list_is_named_by_its_place() -> None:
    with pytest.raises(DeclareError, match=r"layer_types\[1\] is 5"):
        ConfigFields({"layer_types": ["full_attention", 5]}).texts("layer_types")


def test_a_wrong_number_of_a_list_is_named_by_its_place() -> None:
    with pytest.raises(DeclareError, match=r"places\[2\] is -1"):
        ConfigFields({"places": [0, 1, -1]}).counts("places")


def test_an_empty_inner_list_is_refused() -> None:
    with pytest.raises(DeclareError, match=r"groups\[1\] is empty"):
        ConfigFields({"groups": [[1], []]}).count_lists("groups")


def test_a_section_that_is_no_object_is_refused() -> None:
    with pytest.raises(DeclareError, match="expected an object"):
        ConfigFields({"text_config": [1]}).section("text_config")


def test_a_text_of_another_type_is_refused() -> None:
    with pytest.raises(DeclareError, match="model_type is 7"):
        ConfigFields({"model_type": 7}).text("model_type")


@pytest.mark.parametrize("value", ["x" * 10_000, list(range(10_000)), {"a": {"b": {"c": {}}}}])
def test_absurd_values_are_cut_short_in_messages(value: object) -> None:
    assert len(shown(value)) < 120
