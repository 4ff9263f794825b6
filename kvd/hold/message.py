"""What daemon and holder say to each other, one request and one answer at a time.

The holder speaks first: a greeting with its version, or why it does not serve this peer. It may be
another user's process, or another daemon may use the holder (BUSY, with that one's pid).

The holder outlives upgrades of the daemon, so no struct here changes without a new version.
"""

from typing import Final, NewType, TypeAlias

import msgspec

from kvd_proto.errors import FrameError

HoldVersion = NewType("HoldVersion", int)

HOLD_VERSION: Final = HoldVersion(1)


class Request(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what a daemon asks of its holder."""


class Put(Request, frozen=True, tag="put"):
    """Keep the descriptor that comes along; the answer is `Kept`."""

    name: str
    size_bytes: int


class ListHeld(Request, frozen=True, tag="list"):
    """Ask what is kept; the answer is a `Listing`."""

    start_index: int = 0


class Get(Request, frozen=True, tag="get"):
    """Ask for a descriptor; the answer is `Found`, and the descriptor comes along."""

    name: str


class Drop(Request, frozen=True, tag="drop"):
    """Forget a descriptor; the answer is `Dropped`."""

    name: str


class Answer(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what a holder answers."""


class Greeting(Answer, frozen=True, tag="greeting"):
    """The holder speaks this version; the nonce's descriptor comes along."""

    version: HoldVersion


class Kept(Answer, frozen=True, tag="kept"):
    """The descriptor is kept from now on."""


class HeldMemory(msgspec.Struct, frozen=True):
    """One descriptor that is kept."""

    name: str
    size_bytes: int


class Listing(Answer, frozen=True, tag="listing"):
    """A part of what is kept, in order of names, and how many there are in all."""

    held: tuple[HeldMemory, ...]
    held_count: int


class Found(Answer, frozen=True, tag="found"):
    """The descriptor comes along."""

    size_bytes: int


class Dropped(Answer, frozen=True, tag="dropped"):
    """The descriptor is not kept any more."""


class Refused(Answer, frozen=True, tag="refused"):
    """Nothing was changed, and this is why."""

    code: str
    message: str


AnyRequest: TypeAlias = Put | ListHeld | Get | Drop
AnyAnswer: TypeAlias = Greeting | Kept | Listing | Found | Dropped | Refused

_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(AnyRequest)
_answer_decoder = msgspec.msgpack.Decoder(AnyAnswer)

encode = _encoder.encode
"""Encode a request or an answer."""


def decode_request(payload: bytes) -> AnyRequest:
    """Decode a request; raises FrameError."""
    try:
        return _request_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise FrameError(f"request of {len(payload)} bytes cannot be decoded: {error}") from error


def decode_answer(payload: bytes) -> AnyAnswer:
    """Decode an answer; raises FrameError."""
    try:
        return _answer_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise FrameError(f"answer of {len(payload)} bytes cannot be decoded: {error}") from error
