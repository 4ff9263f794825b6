"""Golden bytes, and every message there and back."""

import copy
from typing import Any

import msgspec
import pytest

from kvd_proto import codec
from kvd_proto.control import CONTROL_TYPES
from kvd_proto.memory import (
    AttentionPart,
    Declaration,
    DeclaredConfig,
    DeclaredLayers,
    LatentPart,
    Part,
    StatePart,
)
from kvd_proto.operations import FACT_TYPES, OPERATION_TYPES, OWN_ENTRY_TYPES
from kvd_proto.outcomes import EFFECT_TYPES, RESULT_TYPES, AnyEffect, AnyResult, Outcome
from kvd_proto.version import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from tests.proto.golden import broken, current, recorded
from tests.proto.samples import SAMPLES

_MEMORY_TYPES = (AttentionPart, LatentPart, StatePart, DeclaredLayers, DeclaredConfig)
TAGGED: tuple[type[msgspec.Struct], ...] = (
    *OPERATION_TYPES,
    *FACT_TYPES,
    *OWN_ENTRY_TYPES,
    *EFFECT_TYPES,
    *RESULT_TYPES,
    *CONTROL_TYPES,
    *_MEMORY_TYPES,
)


def _decode(name: str, encoded: bytes) -> Any:
    if name == "frame.header":
        return codec.decode_header(encoded)
    if name == "frame.entry":
        return codec.decode_entry(encoded)
    if name == "frame.batch_reply":
        return codec.decode_reply(encoded)
    if name == "frame.outcome":
        return msgspec.msgpack.decode(encoded, type=Outcome)
    family = name.partition(".")[0]
    if family == "operation":
        return codec.decode_operation(encoded)
    if family == "fact":
        return codec.decode_fact(encoded)
    if family == "own":
        return codec.decode_own_entry(encoded)
    if family == "control":
        return codec.decode_control(encoded)
    other: Any = {"effect": AnyEffect, "result": AnyResult}.get(family, Part | Declaration)
    return msgspec.msgpack.decode(encoded, type=other)


@pytest.mark.parametrize("kind", TAGGED, ids=lambda kind: kind.__name__)
def test_every_message_has_a_sample(kind: type[msgspec.Struct]) -> None:
    assert any(type(sample) is kind for sample in SAMPLES.values())


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bytes_of_a_message_are_the_golden_ones(name: str) -> None:
    assert codec.encode(SAMPLES[name]).hex() == recorded()["bytes"][name]


def test_defaults_and_enum_values_are_the_golden_ones() -> None:
    assert current() == recorded()


def test_the_golden_bytes_are_those_of_the_protocol_version_spoken() -> None:
    assert recorded()["protocol_version"] == PROTOCOL_VERSION
    assert 1 <= PROTOCOL_VERSION_MIN <= PROTOCOL_VERSION


@pytest.mark.parametrize("name", SAMPLES)
def test_a_message_comes_back_equal(name: str) -> None:
    assert _decode(name, codec.encode(SAMPLES[name])) == SAMPLES[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_leaves_no_field_at_its_default(name: str) -> None:
    sample = SAMPLES[name]
    same = [
        field.name
        for field in msgspec.structs.fields(sample)
        if field.default is not msgspec.NODEFAULT and getattr(sample, field.name) == field.default
    ]
    assert not same


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("bytes", "operation.take", "00"),
        ("bytes", "operation.take", None),
        (
            "defaults",
            "operation.take",
            {"requests": "b''", "tokens": "2", "tokens_each": "b''", "victims": "b''"},
        ),
        ("enums", "Verdict", {"FITS": 1, "WAIT": 0, "UNSCHEDULABLE": 2}),
        ("enums", "Verdict", {"FITS": 0, "WAIT": 1}),
    ],
)
def test_a_change_that_an_older_peer_misreads_is_found(
    section: str, name: str, value: object
) -> None:
    changed = copy.deepcopy(recorded())
    changed[section][name] = value
    assert broken(recorded(), changed) == [f"{section}.{name}"]


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("bytes", "operation.lock", "00"),
        ("enums", "Verdict", {"FITS": 0, "WAIT": 1, "UNSCHEDULABLE": 2, "SHRINK": 3}),
    ],
)
def test_an_addition_keeps_the_protocol_version(section: str, name: str, value: object) -> None:
    changed = copy.deepcopy(recorded())
    changed[section][name] = value
    assert broken(recorded(), changed) == []
