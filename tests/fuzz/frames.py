"""Frames that no honest client sends, made from those it does: headers, bodies, counts and sizes.

Every message starts as a valid one. Then its header, the tree in its body, its bytes, or the number
and sizes of its frames are damaged, and some are left as they are: those are accepted, or refused
for who sends them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import msgspec

from kvd_proto.codec import encode
from kvd_proto.control import Header, MessageKind
from tests.fuzz.trees import NUMBERS, damaged, misnumbered, nasty
from tests.proto.samples import SAMPLES

KIND_OF_GROUP: Final = {
    "operation": (MessageKind.BATCH,),
    "fact": (MessageKind.FACT,),
    "frame": (MessageKind.BATCH, MessageKind.REPLY),
    "own": (MessageKind.BATCH, MessageKind.FACT),
    "effect": (MessageKind.BATCH, MessageKind.REPLY),
    "result": (MessageKind.REPLY, MessageKind.ACK),
    "memory": (MessageKind.HELLO,),
    "control": (MessageKind.ASK,),
}
KIND_OF_CONTROL: Final = {
    "control.hello": MessageKind.HELLO,
    "control.welcome": MessageKind.WELCOME,
    "control.ping": MessageKind.PING,
    "control.bye": MessageKind.BYE,
    "control.ack": MessageKind.ACK,
    "control.error": MessageKind.ERROR,
    "control.stats_request": MessageKind.STATS,
    "control.health_request": MessageKind.HEALTH,
}
TAGS: Final = tuple(sorted({name.split(".")[1] for name in SAMPLES}))
KINDS: Final = tuple(kind for kind in MessageKind if kind is not MessageKind.BYE)
TREES: Final[dict[str, Any]] = {
    name: msgspec.msgpack.decode(encode(sample)) for name, sample in SAMPLES.items()
}
"""Every sample as the lists, objects and values that its bytes hold."""
ENDING: Final = ("control.bye", "fact.rank_failed")
"""Messages that end the sender's group, as they are meant to; drawn seldom."""
LASTING: Final = tuple(name for name in TREES if name not in ENDING)
BATCH_END: Final = msgspec.msgpack.decode(encode(SAMPLES["operation.batch_end"]))
HEADS: Final = tuple(
    bytes((head, *size))
    for head in (0xC4, 0xC5, 0xC6, 0xC7, 0xC9, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xC1, 0xD4)
    for size in ((255,), (255, 255), (255, 255, 255, 255), (0, 0, 0, 0))
)
"""Heads of byte strings, texts, arrays and objects that promise more than follows."""


@dataclass
class Sender:
    """What a session may put into its headers; zeros before it has a welcome."""

    epoch: int = 0
    token: int = 0
    index: int = 0
    position: int = 0
    others: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Epochs and tokens of other sessions."""


def message(
    rng: Random,
    sender: Sender,
    operations: Callable[[], list[Any]],
    hello: Any,
    *,
    frame_bytes_max: int,
) -> list[bytes]:
    """Return the frames of one message; operations and hello suit the sender's state."""
    kind, tree = _start(rng, operations, hello)
    how = rng.randrange(100)
    if how < 5:
        return _garbage(rng)
    header = Header(kind, sender.epoch, sender.token, sender.index, sender.position)
    head, body = encode(header), b""
    if how < 25:
        head = _other_header(rng, header, sender)
    if 20 <= how < 45:
        tree = damaged(tree, rng, times=rng.choice((1, 1, 1, 2, 4)), words=TAGS)
    elif 45 <= how < 75:
        tree = misnumbered(tree, rng, times=rng.choice((0, 1, 1, 1, 2, 4)))
    body = encode(tree)
    if 72 <= how < 85:
        body = _other_bytes(rng, body)
    frames = [head, body]
    if 85 <= how < 92:
        frames = _other_frames(rng, frames, frame_bytes_max)
    return frames


def _start(rng: Random, operations: Callable[[], list[Any]], hello: Any) -> tuple[MessageKind, Any]:
    """Return a message as it should be: of a kind, with the tree of its body."""
    drawn = rng.randrange(100)
    if drawn < 55:
        return MessageKind.BATCH, [*operations(), BATCH_END]
    if drawn < 58:
        return MessageKind.HELLO, hello
    name = rng.choice(ENDING if rng.random() < 0.005 else LASTING)
    group = name.split(".")[0]
    kind = KIND_OF_CONTROL.get(name) or rng.choice(KIND_OF_GROUP[group])
    tree = TREES[name]
    return kind, [tree, BATCH_END] if kind is MessageKind.BATCH else tree


def _garbage(rng: Random) -> list[bytes]:
    count = rng.choice((1, 2, 2, 2, 3, 9))
    return [rng.randbytes(rng.choice((0, 1, 5, 60, 700))) for _ in range(count)]


def _other_header(rng: Random, header: Header, sender: Sender) -> bytes:
    act = rng.randrange(5)
    if act == 0:
        return encode(damaged(msgspec.msgpack.decode(encode(header)), rng, words=KINDS))
    if act == 1:
        return _other_bytes(rng, encode(header))
    if act == 2 and sender.others:
        epoch, token = rng.choice(sender.others)
        return encode(msgspec.structs.replace(header, epoch=epoch, token=token))
    if act == 3:
        return encode(msgspec.structs.replace(header, kind=rng.choice(KINDS)))
    name = rng.choice(("epoch", "token", "index", "position"))
    value = rng.choice((rng.choice(NUMBERS), getattr(header, name) + rng.choice((-1, 1, 2))))
    changed: dict[str, Any] = {name: max(-(1 << 63), min(value, (1 << 64) - 1))}
    return encode(msgspec.structs.replace(header, **changed))


def _other_bytes(rng: Random, frame: bytes) -> bytes:
    act = rng.randrange(8)
    at = rng.randrange(len(frame) + 1)
    if act == 0:
        return frame[:at]
    if act == 1:
        return frame + rng.choice((b"\0", b"\x90", frame, encode(nasty(rng))))
    if act == 2:
        return frame[:at] + rng.choice(HEADS) + frame[at:]
    if act == 3:
        return rng.choice(HEADS) + frame
    if act == 4:
        return frame[:at] + rng.randbytes(rng.choice((1, 3, 8))) + frame[at + 1 :]
    if act == 5:
        return frame[at:]
    if act == 6:
        return rng.choice((b"\x91", b"\x81\xa1a", b"\xdc\x00\x01")) * rng.choice((3, 600, 5000))
    flipped = bytearray(frame or b"\0")
    flipped[at % len(flipped)] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _other_frames(rng: Random, frames: list[bytes], frame_bytes_max: int) -> list[bytes]:
    head, body = frames
    act = rng.randrange(9)
    if act == 0:
        return [head]
    if act == 1:
        return [b"", b""]
    if act == 2:
        return [head, body, rng.randbytes(4)]
    if act == 3:
        return [head] * rng.choice((2, 3, 200)) + [body]
    if act == 4:
        return [head, bytes(frame_bytes_max + rng.choice((0, 1, 100)))]
    if act == 5:
        return [head + bytes(frame_bytes_max), body]
    if act == 6:
        return [body, head]
    if act == 7:
        return [b""] * rng.choice((1, 3, 1000))
    return [head, b"\xdd" + len(body).to_bytes(4, "big") + bytes(frame_bytes_max - 5)]
