"""Frames: encoding and decoding, and the digest that names an operation's bytes.

A batch body is a MessagePack array of operations, each encoded singly, so that every operation's
own bytes can be logged, digested and compared without encoding it again.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import xxhash

from kvd_proto.control import AnyControl, Header
from kvd_proto.errors import ErrorCode, FrameError
from kvd_proto.operations import AnyFact, AnyOperation, AnyOwnEntry, Operation
from kvd_proto.outcomes import BatchReply, Entry

T = TypeVar("T")

BATCH_ELEMENTS_MAX = 1 << 17
"""Elements of a batch body that are looked at; bounds the objects that a frame of zeros makes."""

_encoder = msgspec.msgpack.Encoder()
_operation_decoder = msgspec.msgpack.Decoder(AnyOperation)
_fact_decoder = msgspec.msgpack.Decoder(AnyFact)
_own_decoder = msgspec.msgpack.Decoder(AnyOwnEntry)
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_reply_decoder = msgspec.msgpack.Decoder(BatchReply)
_control_decoder = msgspec.msgpack.Decoder(AnyControl)
_header_decoder = msgspec.msgpack.Decoder(Header)
_raws_decoder = msgspec.msgpack.Decoder(
    Annotated[list[msgspec.Raw], msgspec.Meta(max_length=BATCH_ELEMENTS_MAX)]
)

digest_of = xxhash.xxh3_64_intdigest
"""Digest of an encoded operation. It finds accidents; the daemon compares the bytes themselves."""

encode = _encoder.encode
"""Encode any message, operation, fact or entry."""


def _decode(decoder: "msgspec.msgpack.Decoder[T]", frame: bytes | memoryview, what: str) -> T:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # A validation error is a decode error; arrays nested too deep exhaust the recursion limit.
        raise FrameError(f"{what} of {len(frame)} bytes cannot be decoded: {error}") from error


def decode_header(frame: bytes) -> Header:
    """Decode a header frame; raises FrameError."""
    return _decode(_header_decoder, frame, "header")


def decode_control(frame: bytes) -> Any:
    """Decode a control message of any type; raises FrameError."""
    return _decode(_control_decoder, frame, "control message")


def split_batch(frame: bytes) -> list[msgspec.Raw]:
    """Return the encoded operations of a batch body, each as its own bytes; raises FrameError."""
    return _decode(_raws_decoder, frame, "batch")


def join_batch(operations: Sequence[bytes]) -> bytes:
    """Return the batch body that holds these encoded operations."""
    return _array_head(len(operations)) + b"".join(operations)


def decode_operation(encoded: bytes | msgspec.Raw) -> Operation:
    """Decode one operation; raises FrameError."""
    return _decode(_operation_decoder, encoded, "operation")


def decode_fact(encoded: bytes) -> AnyFact:
    """Decode one fact; raises FrameError."""
    return _decode(_fact_decoder, encoded, "fact")


def decode_own_entry(encoded: bytes) -> AnyOwnEntry:
    """Decode one of the daemon's own entries; raises FrameError."""
    return _decode(_own_decoder, encoded, "entry")


def decode_entry(encoded: bytes) -> Entry:
    """Decode one entry of the log; raises FrameError."""
    return _decode(_entry_decoder, encoded, "entry")


def join_reply(position: int, entries: Sequence[bytes]) -> bytes:
    """Return the body of a reply whose entries are encoded already."""
    return b"\x92" + _encoder.encode(position) + _array_head(len(entries)) + b"".join(entries)


def decode_reply(frame: bytes) -> BatchReply:
    """Decode a reply body; raises FrameError."""
    return _decode(_reply_decoder, frame, "reply")


def check_frame_bytes(frame: bytes, *, bytes_max: int) -> None:
    """Raise FrameError if the frame is over the cap."""
    if len(frame) > bytes_max:
        raise FrameError(
            f"frame of {len(frame)} bytes is over the cap of {bytes_max} bytes",
            code=ErrorCode.FRAME_TOO_LARGE,
        )


def _array_head(count: int) -> bytes:
    """Return the MessagePack head of an array (fixarray, array 16 or array 32)."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")
