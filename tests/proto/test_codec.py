"""Frames: what comes in is a message or a FrameError, whatever the bytes are."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd_proto import codec
from kvd_proto.errors import ErrorCode, FrameError, KvdError
from kvd_proto.operations import Admit, BatchEnd, Processed, Take
from kvd_proto.version import FRAME_BYTES_MAX
from tests.proto.samples import SAMPLES, int32s, int64s

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "header": codec.decode_header,
    "control": codec.decode_control,
    "batch": codec.split_batch,
    "operation": codec.decode_operation,
    "fact": codec.decode_fact,
    "own": codec.decode_own_entry,
    "entry": codec.decode_entry,
    "reply": codec.decode_reply,
}
DEEP = 200_000
ENCODED = [codec.encode(sample) for sample in SAMPLES.values()]


def _decodes_or_refuses(frame: bytes) -> None:
    for decoder in DECODERS.values():
        try:
            decoder(frame)
        except FrameError:
            continue


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_frame_error(frame: bytes) -> None:
    _decodes_or_refuses(frame)


@settings(deadline=None)
@given(st.data())
def test_a_mutated_message_raises_nothing_but_a_frame_error(data: st.DataObject) -> None:
    frame = bytearray(data.draw(st.sampled_from(ENCODED)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(frame) - 1))
        frame[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    _decodes_or_refuses(bytes(frame[:cut]) + data.draw(st.binary(max_size=4)))


@settings(deadline=None, max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
        | st.text(max_size=12) | st.binary(max_size=12),
        lambda inner: st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    )
)  # fmt: skip
def test_well_formed_messages_of_no_kind_raise_nothing_but_a_frame_error(value: object) -> None:
    _decodes_or_refuses(codec.encode(value))


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x91" * DEEP, id="nested arrays"),
        pytest.param(b"\x81\xa1a" * DEEP, id="nested maps"),
        pytest.param(b"\x81\xa4type" + b"\x91" * DEEP, id="nested behind a tag"),
        pytest.param(b"\x92\xa4take" + b"\x91" * DEEP, id="nested behind an operation's tag"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="endless array"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="endless map"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="endless bytes"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="endless text"),
        pytest.param(b"\x92\xa6relief\xdd\xff\xff\xff\xff", id="endless demand"),
        pytest.param(b"\xc1", id="the byte that MessagePack never uses"),
    ],
)
def test_a_hostile_frame_is_a_frame_error(kind: str, frame: bytes) -> None:
    with pytest.raises(FrameError, match=f"{len(frame)} bytes cannot be decoded") as caught:
        DECODERS[kind](frame)
    assert caught.value.code is ErrorCode.BAD_FRAME


def test_a_batch_of_endless_elements_is_refused_before_they_become_objects() -> None:
    count = codec.BATCH_ELEMENTS_MAX + 1
    with pytest.raises(FrameError, match=str(codec.BATCH_ELEMENTS_MAX)):
        codec.split_batch(b"\xdd" + count.to_bytes(4, "big") + b"\xc0" * count)


@pytest.mark.parametrize("frame", [codec.encode(Processed(1)) + b"\x00", b"\x90\x90"])
def test_bytes_behind_a_message_are_refused(frame: bytes) -> None:
    with pytest.raises(FrameError):
        codec.decode_operation(frame)


def test_a_frame_at_the_cap_passes() -> None:
    codec.check_frame_bytes(bytes(100), bytes_max=100)


def test_a_frame_over_the_cap_is_refused_with_both_sizes() -> None:
    with pytest.raises(FrameError, match="101 bytes is over the cap of 100 bytes") as caught:
        codec.check_frame_bytes(bytes(101), bytes_max=100)
    assert caught.value.code is ErrorCode.FRAME_TOO_LARGE


def test_the_cap_holds_a_prompt_of_a_million_tokens_at_page_size_one() -> None:
    assert FRAME_BYTES_MAX > 3 * 4 * 1_000_000


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 65_535, 65_536])
def test_a_batch_is_the_array_that_msgpack_would_write(count: int) -> None:
    operation = codec.encode(BatchEnd())
    assert codec.join_batch([operation] * count) == codec.encode([BatchEnd()] * count)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_a_batch_splits_into_the_bytes_it_was_joined_from(count: int) -> None:
    operations = [codec.encode(Processed(number)) for number in range(count)]
    assert [bytes(raw) for raw in codec.split_batch(codec.join_batch(operations))] == operations


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_536])
@pytest.mark.parametrize("position", [0, 1, 127, 128, 1 << 16, 1 << 40])
def test_a_joined_reply_is_the_reply_that_msgpack_would_write(count: int, position: int) -> None:
    entry = SAMPLES["frame.entry"]
    joined = codec.join_reply(position, [codec.encode(entry)] * count)
    assert joined == codec.encode([position, [entry] * count])


def test_an_operation_is_decoded_from_its_part_of_a_batch_without_a_copy_of_its_neighbours() -> (
    None
):
    admit = SAMPLES["operation.admit"]
    body = codec.join_batch([codec.encode(admit), codec.encode(BatchEnd())])
    raws = codec.split_batch(body)
    assert [codec.decode_operation(raw) for raw in raws] == [admit, BatchEnd()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (int64s(1), b"\x01" + bytes(7)),
        (int64s(-2), b"\xfe" + b"\xff" * 7),
        (int64s(1 << 32), bytes(4) + b"\x01" + bytes(3)),
        (int32s(1, 256), b"\x01\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_raw_arrays_are_little_endian(values: bytes, expected: bytes) -> None:
    assert values == expected


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (["take", "text", 1, b""], r"Expected `bytes`, got `str`"),
        (["take", b"", 1.5, b""], r"Expected `int`, got `float`"),
        (["take", b"", 1, b"", b"", 0], r"Expected `array` of at most length 4, got 5"),
        (["steal", b""], r"Invalid value 'steal'"),
        (["free"], r"at least length 2"),
        ({"type": "free"}, r"Expected `array`, got `object`"),
    ],
)
def test_a_wrong_operation_is_refused_with_what_is_wrong(frame: object, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        codec.decode_operation(codec.encode(frame))


def test_an_unknown_field_of_a_control_message_is_for_newer_peers() -> None:
    frame = codec.encode({"type": "bye", "reason": "done", "mood": "fine"})
    assert codec.decode_control(frame).reason == "done"


def test_the_digest_is_that_of_the_bytes() -> None:
    encoded = codec.encode(Take(int64s(1)))
    assert codec.digest_of(encoded) == codec.digest_of(bytes(bytearray(encoded)))
    assert codec.digest_of(encoded) != codec.digest_of(codec.encode(Take(int64s(2))))
    assert 0 <= codec.digest_of(encoded) < 1 << 64


@pytest.mark.parametrize("operation", [Take(), Admit(b"", b"", b"")])
def test_equal_operations_have_equal_bytes(operation: msgspec.Struct) -> None:
    assert codec.encode(operation) == codec.encode(codec.decode_operation(codec.encode(operation)))


def test_an_error_says_whether_trying_again_can_help() -> None:
    error = KvdError("not quiet yet", code=ErrorCode.BUSY, retry=True)
    assert (error.message, error.code, error.retry) == ("not quiet yet", ErrorCode.BUSY, True)
    assert isinstance(FrameError("x"), KvdError)


def test_a_code_has_the_value_of_its_name() -> None:
    assert [code.name for code in ErrorCode] == [code.value for code in ErrorCode]


def test_columns_in_an_outcome_read_back_as_int32() -> None:
    outcome = SAMPLES["frame.outcome"]
    entry = codec.decode_entry(codec.encode([0, 0, 0, outcome]))
    columns = np.frombuffer(entry.outcome.columns, dtype="<i4")
    assert columns.size == sum(entry.outcome.lengths)
