"""The error tree: one root, a code each, and the tree as the docstring draws it."""

import re

import pytest

from kvd import errors
from kvd.errors import (
    DeclareError,
    DivergenceError,
    FileError,
    InvariantError,
    OperationError,
    PlanError,
    SettingError,
    SizeError,
)
from kvd_proto.errors import MESSAGE_CHARACTERS_MAX, ErrorCode, KvdError

OWN = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, KvdError) and kind.__module__ == errors.__name__
}


def test_every_error_descends_from_the_root() -> None:
    assert OWN
    assert all(issubclass(kind, KvdError) for kind in OWN.values())


def test_the_docstring_draws_every_error() -> None:
    assert set(re.findall(r"\+-- (\w+)", errors.__doc__ or "")) == set(OWN)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DeclareError("x"), ErrorCode.BAD_MODEL),
        (PlanError("x"), ErrorCode.BAD_MODEL),
        (SizeError("x"), ErrorCode.BAD_MODEL),
        (SettingError("x"), ErrorCode.BAD_SETTING),
        (FileError("x"), ErrorCode.BAD_FILE),
        (OperationError("x"), ErrorCode.BAD_ARGUMENT),
        (OperationError("x", code=ErrorCode.BAD_PAGE), ErrorCode.BAD_PAGE),
        (DivergenceError("x"), ErrorCode.DIVERGED),
        (InvariantError("a.b", "x"), ErrorCode.INVARIANT),
    ],
    ids=lambda value: str(value),
)
def test_an_error_carries_its_code(error: KvdError, code: ErrorCode) -> None:
    assert error.code is code
    assert not error.retry


def test_a_broken_invariant_says_its_name_first() -> None:
    error = InvariantError("band.conservation", "3 live")
    assert str(error) == "band.conservation: 3 live"
    assert error.name == "band.conservation"


def test_a_size_error_says_how_much_is_missing() -> None:
    assert SizeError("short", short_bytes=5).short_bytes == 5


@pytest.mark.parametrize("length", [1000, 1001, 10**6])
def test_a_message_is_cut_in_the_middle_and_says_how_long_it_was(length: int) -> None:
    message = KvdError("a" + "x" * (length - 2) + "z").message
    assert len(message) <= MESSAGE_CHARACTERS_MAX
    assert (message[0], message[-1]) == ("a", "z")
    assert (f"({length} characters)" in message) == (length > MESSAGE_CHARACTERS_MAX)


@pytest.mark.parametrize(
    "value", ["x" * 10**6, 10**5000, {"a": [10**5000]}, [[[[[[[[1]]]]]]]]], ids=lambda _: ""
)
def test_a_value_of_any_size_is_shown_short(value: object) -> None:
    assert len(errors.shown(value)) < 120
