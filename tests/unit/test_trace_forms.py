"""Entries in words: nothing is lost on the way, and what is no entry is refused by name."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvd.errors import FileError
from kvd.trace.forms import form_of, ids_of, logical, message_of, runs_of, type_of
from kvd_proto.codec import encode
from kvd_proto.operations import (
    FACT_TYPES,
    OPERATION_TYPES,
    OWN_ENTRY_TYPES,
    Admit,
    BackupSubmit,
    Free,
    Launch,
    WriteSet,
)
from tests.proto.samples import SAMPLES
from tests.stateful.ranks import int32s, int64s

ALL = (*OPERATION_TYPES, *FACT_TYPES, *OWN_ENTRY_TYPES)
MESSAGES = [message for message in SAMPLES.values() if isinstance(message, ALL)]


def test_there_is_a_sample_of_every_kind() -> None:
    assert {type(message) for message in MESSAGES} == set(ALL)


@pytest.mark.parametrize("message", MESSAGES, ids=type_of)
def test_a_message_comes_back_from_json_byte_for_byte(message: msgspec.Struct) -> None:
    form = msgspec.json.decode(msgspec.json.encode(form_of(message)))
    assert encode(message_of(type_of(message), form)) == encode(message)


def test_ids_are_runs_and_counts_are_lists() -> None:
    admit = Admit(int64s([4, 5, 6, 9]), int32s([7] * 4), int32s([1] * 4), chunk_tokens=16)
    assert form_of(admit) == {
        "requests": [[4, 3], [9, 1]],
        "prompt_tokens": [7, 7, 7, 7],
        "new_tokens_max": [1, 1, 1, 1],
        "chunk_tokens": 16,
    }


def test_lists_per_band_are_forms_each() -> None:
    backup = BackupSubmit(3, (b"", int64s([2, 1])), (b"", int32s([8, 9])))
    assert form_of(backup) == {
        "backup": 3,
        "virtual": [[], [[2, 1], [1, 1]]],
        "host_units": [[], [8, 9]],
    }


def test_a_write_set_is_a_word() -> None:
    launch = Launch(2, 5, WriteSet.REQUESTS, int64s([1]))
    assert form_of(launch)["writes"] == "requests"
    assert message_of("launch", form_of(launch)) == launch


def test_bytes_that_are_no_array_are_kept_as_they_are() -> None:
    wrong = Free(b"\x01\x02\x03")
    assert form_of(wrong) == {"requests": {"hex": "010203"}}
    assert message_of("free", form_of(wrong)) == wrong


@given(st.lists(st.integers(-5, 40)))
def test_runs_say_ids_in_their_order(ids: list[int]) -> None:
    runs = runs_of(np.array(ids, dtype=np.int64))
    assert ids_of(runs) == ids
    assert all(count > 0 for _, count in runs)


@pytest.mark.parametrize(
    ("kind", "form", "said"),
    [
        ("fly", {}, "'fly' is no operation, fact or entry"),
        ("free", {"request": [[1, 1]]}, "free has no field 'request'; it has requests"),
        ("free", {"requests": 7}, "field requests is 7"),
        ("free", {"requests": [[1 << 70, 1]]}, "field requests is"),
        ("free", {"requests": {"hex": "xy"}}, "field requests is"),
        ("free", {}, "free cannot be read"),
        ("take", {"tokens": "many"}, "take cannot be read"),
        ("launch", {"step": 1, "position": 0, "writes": "all"}, "field writes is 'all'"),
    ],
)
def test_what_is_no_entry_is_refused_by_name(kind: str, form: object, said: str) -> None:
    with pytest.raises(FileError) as raised:
        message_of(kind, form)  # type: ignore[arg-type]
    assert said in raised.value.message


def test_how_much_is_short_is_no_part_of_what_two_allocators_agree_on() -> None:
    refusal = {"reason": "NO_BYTES", "request": 3, "short_units": 4, "obstacle": "the arena"}
    assert logical({"answer": "refused", **refusal}) == {
        "answer": "refused",
        "reason": "NO_BYTES",
        "request": 3,
    }
    assert logical({"answer": "admitted", "refusals": [refusal]})["refusals"] == [
        {"request": 3, "reason": "NO_BYTES"}
    ]


@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("prompt_tokens", [(1 << 32) + 8], "4294967304 does not fit into 32 bits"),
        ("requests", [[1, 900_000_000]], "more than 67108864 ids"),
        ("requests", [[1, -3]], "a run has at least one id"),
    ],
)
def test_a_number_that_does_not_fit_is_named_and_not_wrapped(
    field: str, value: object, wrong: str
) -> None:
    with pytest.raises(FileError, match=wrong):
        message_of("admit", {field: value})
