"""What a trace starts from: what no daemon wrote is one error with the value and what is right."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.errors import FileError
from kvd.trace.compare import compare
from kvd.trace.head import validate_start
from kvd.trace.records import FORMAT, Head, encode_record
from kvd.trace.stage import StageAdapter
from kvd.trace.text import record_line
from tests.unit.test_engine_start import following, with_survivors
from tests.unit.trace_parts import damaged, recorded, records, script, traced

LINES = traced().splitlines(keepends=True)
SURVIVED = encode_record(Head(format=FORMAT, build="x", start=following(with_survivors()).start))


def changed(line: bytes, *path: object, value: object) -> bytes:
    """Return a head with another value at a path."""
    form = msgspec.json.decode(line)
    inner = form["start"]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return msgspec.json.encode(form) + b"\n"


def refusal(data: bytes) -> str:
    with pytest.raises(FileError) as raised:
        records(data)
    return raised.value.message


HUGE = 1 << 62
WRONG: list[tuple[tuple[object, ...], object, str]] = [
    (("ranks",), [], "ranks is []; it has to name one rank or more, each once, from 0 on"),
    (("ranks",), [0, 0], "ranks is [0, 0]; it has to name one rank"),
    (("ranks",), [-1], "ranks is [-1]; it has to name one rank"),
    (("ranks",), ["0"], "Expected `int`, got `str` - at `$.start.ranks[0]`"),
    (("incarnation",), 0, "incarnation is 0; it has to be 1 to"),
    (("position",), -1, "position is -1; it has to be 0 to"),
    (("idle_moves_max",), -1, "idle_moves_max is -1; it has to be 0 to"),
    (("batch_moves_max",), -1, "batch_moves_max is -1; it has to be 0 to"),
    (("check_level",), "loud", "Invalid enum value 'loud' - at `$.start.check_level`"),
    (("shape", "stage_index"), -1, "stage_index is -1; it has to be 0 to"),
    (("shape", "arena_bytes"), 0, "arena_bytes is 0; it has to be 1 to"),
    (("shape", "arena_bytes"), HUGE, f"arena_bytes is {HUGE}; it has to be 1 to"),
    (("shape", "sink_bytes"), -1, "sink_bytes is -1; it has to be 0 to"),
    (("shape", "page_tokens"), 0, "page_tokens is 0; it has to be 1 to 65536"),
    (("shape", "context_tokens"), 0, "context_tokens is 0; it has to be 1 to"),
    (("shape", "chunk_tokens"), 0, "chunk_tokens is 0; it has to be 1 to"),
    (("shape", "step_tokens"), 0, "step_tokens is 0; it has to be 1 to"),
    (("shape", "row_count"), 1, "row_count is 1; it has to be 2 to"),
    (("shape", "row_pages"), 1, "row_pages is 1; it has to be "),
    (("shape", "row_pages"), 1 << 31, "places of all rows is "),
    (("shape", "virtual_page_count"), 0, "virtual_page_count is 0; it has to be 1 to"),
    (("shape", "virtual_slot_count"), -1, "virtual_slot_count is -1; it has to be 0 to"),
    (("shape", "bands"), [], "bands is []; there has to be one or more, of different names"),
    (("shape", "bands", 0, "name"), "full", "of different names"),
    (("shape", "bands", 0, "lifetime"), "full", "at most one state comes first, then windows"),
    (("shape", "bands", 0, "kind"), "float", "the first band grows up, the last one grows down"),
    (("shape", "bands", 0, "unit_bytes"), 0, "unit_bytes is 0; it has to be 1 to"),
    (("shape", "bands", 0, "unit_index_min"), 0, "unit_index_min is 0; it has to be 1 to"),
    (("shape", "bands", 0, "unit_index_end_count"), HUGE, f"unit_index_end_count is {HUGE}; it"),
    (("shape", "bands", -1, "window_tokens"), 4, "band 'full': window_tokens is 4; it has to be 0"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_a_malformed_head_is_one_error_with_the_value_and_what_is_right(
    path: tuple[object, ...], value: object, said: str
) -> None:
    message = refusal(changed(LINES[0], *path, value=value))
    assert message.startswith("a trace, line 1: ")
    assert said in message


def start(survivors: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a head with other survivors."""
    form = msgspec.json.decode(SURVIVED)
    survivors(form["start"]["survivors"])
    return msgspec.json.encode(form) + b"\n"


def assign(*path: object, value: object) -> Callable[[dict[str, Any]], None]:
    def change(survivors: dict[str, Any]) -> None:
        inner: Any = survivors
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


WRONG_SURVIVORS: list[tuple[tuple[object, ...], object, str]] = [
    (("highest_value_id",), 4, "value_id is 9; it has to be 1 to 4"),
    (("values", 0, "value_id"), 9, "value_id 9 is there twice; it has to be there once"),
    (("values", 0, "pages", 0), 0, "it has to be some of the pages [0, 2, "),
    (("values", 1, "slot_index"), 1, "band 'state': id 1 is there twice"),
    (("values", 0, "bound"), [], "bound has 0 lists; there has to be one for each of"),
    (("values", 0, "bound", -1), [1], "value 4: bound in 'full' is [1]; it has to be empty"),
    (("values", 0, "slot_index"), 1 << 40, "id is 1099511627776; it has to be 1 to"),
    (("physical",), [], "physical has 0 lists; there has to be one for each of"),
    (("physical", -1), [], "ids and 0 units; each has one"),
    (("physical", -1, 0), 0, "unit is 0; it has to be"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG_SURVIVORS)
def test_malformed_survivors_are_one_error_with_the_value_and_what_is_right(
    path: tuple[object, ...], value: object, said: str
) -> None:
    assert said in refusal(start(assign(*path, value=value)))


def test_a_head_with_survivors_is_good_as_it_is() -> None:
    (head,) = records(SURVIVED)
    assert isinstance(head, Head)
    assert head.start.survivors is not None
    validate_start(head.start)


# Numbers in between are left out: a stage of so many units is right, and fills this machine.
NUMBERS = st.integers(-3, 300) | st.sampled_from([1 << 40, 1 << 62, 1 << 63, 1 << 64, -(1 << 63)])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def play_or_refuse(data: bytes, *, answers_only: bool) -> None:
    """Do with a trace what every command does; only a clear error may come out."""
    said = "a trace is played"
    try:
        for record in records(data):
            record_line(record)
        compare(lambda: script(data), recorded(data), StageAdapter, answers_only=answers_only)
    except FileError as error:
        said = error.message
    assert said.startswith("a trace")
    assert said.isprintable()


@given(line=st.sampled_from([LINES[0], SURVIVED]), place=st.integers(0, 500), value=VALUES)
@settings(max_examples=300, deadline=None)
def test_a_head_with_another_value_anywhere_is_played_or_refused(
    line: bytes, place: int, value: object
) -> None:
    form = damaged(msgspec.json.decode(line), place, value)
    try:
        head = msgspec.json.encode(form) + b"\n"
    except (OverflowError, ValueError):
        return  # what JSON does not have
    play_or_refuse(head + b"".join(LINES[1:60]), answers_only=False)


@given(
    number=st.integers(1, 59), place=st.integers(0, 500), value=VALUES, answers_only=st.booleans()
)
@settings(max_examples=300, deadline=None)
def test_a_record_with_another_value_anywhere_is_played_or_refused(
    number: int, place: int, value: object, answers_only: bool
) -> None:
    form = damaged(msgspec.json.decode(LINES[number]), place, value)
    try:
        line = msgspec.json.encode(form) + b"\n"
    except (OverflowError, ValueError):
        return  # what JSON does not have
    data = b"".join([*LINES[:number], line, *LINES[number + 1 : 60]])
    play_or_refuse(data, answers_only=answers_only)
