"""The hello: what a rank says about itself and its model, and what the answer means."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from kvd_client.errors import AttachError, ReplyError, UsageError, code_of
from kvd_client.transport import Frames, Message
from kvd_proto.codec import decode_control, decode_header, encode
from kvd_proto.control import (
    ErrorReply,
    Header,
    Hello,
    MessageKind,
    Mode,
    Role,
    Ticket,
    Welcome,
)
from kvd_proto.errors import ErrorCode, FrameError
from kvd_proto.memory import Declaration, DeclaredConfig, DeclaredLayers, SizingInputs
from kvd_proto.version import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN

CONFIG_NAME = "config.json"
BUILD = "kvd-client/1"
"""Shown in statistics, never compared; versions are."""

Config: TypeAlias = Mapping[str, Any] | str | Path | bytes
"""A Hugging Face configuration: a mapping, a path of config.json or its folder, or its text."""


def read_config(config: Config) -> bytes:
    """Return the text of a configuration; raises UsageError naming a file that cannot be read."""
    if isinstance(config, bytes):
        return config
    if isinstance(config, Mapping):
        try:
            # Sorted, so that ranks that built the mapping in another order declare the same bytes.
            return msgspec.json.encode(dict(config), order="sorted")
        except TypeError as error:
            raise UsageError(f"the configuration is not JSON: {error}") from error
    path = Path(config)
    file = path / CONFIG_NAME if path.is_dir() else path
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", code=ErrorCode.BAD_FILE
        ) from error


def declaration_of(
    declare: Config | Declaration | None, draft: Config | None, name: str
) -> Declaration:
    """Return what the hello declares; raises UsageError for what is no model."""
    if declare is None:
        raise UsageError("attach needs a model: declare=config.json, a mapping, or parts")
    if isinstance(declare, DeclaredLayers | DeclaredConfig):
        if draft is not None:
            raise UsageError("draft= goes with a configuration; declared parts name their draft")
        return declare
    return DeclaredConfig(
        config_json=read_config(declare),
        draft_config_json=None if draft is None else read_config(draft),
        name=name,
    )


def build_hello(
    *,
    group: str,
    stage: int,
    rank: int,
    tp: int,
    pp: int,
    program: int,
    role: Role,
    mode: Mode,
    declare: Declaration,
    sizing: SizingInputs | None,
    overlap: bool,
    gpu_uuid: str,
) -> Hello:
    """Return what a rank says about itself; the ticket comes with the connection.

    With ``overlap`` the arena is sized for it, unless ``sizing`` says otherwise. ``gpu_uuid`` is
    where the rank's memory has to be, empty for the host.
    """
    sizing = sizing or SizingInputs()
    if overlap and sizing.overlap is None:
        sizing = msgspec.structs.replace(sizing, overlap=True)
    return Hello(
        version_min=PROTOCOL_VERSION_MIN,
        version_max=PROTOCOL_VERSION,
        build=BUILD,
        ticket=0,
        group=group,
        role=role,
        mode=mode,
        stage=stage,
        rank=rank,
        tp=tp,
        pp=pp,
        program=program,
        declare=declare,
        sizing=sizing,
        gpu_uuid=gpu_uuid,
        pid=os.getpid(),
        started_at=_started_at(),
    )


def hello_message(hello: Hello, ticket: Ticket) -> Message:
    """Return the first message of a rank, with the ticket that proves which process it is."""
    ticketed = msgspec.structs.replace(hello, ticket=ticket.ticket)
    return Message(Frames(encode(Header(MessageKind.HELLO)), encode(ticketed)))


def read_welcome(message: Message) -> Welcome:
    """Return the welcome; raises AttachError with the daemon's sentence, or ReplyError."""
    answer = message.answer
    assert answer is not None
    try:
        kind = decode_header(answer.header).kind
        body = decode_control(answer.body)
    except FrameError as error:
        raise ReplyError(f"the answer to the hello: {error.message}") from error
    own = f"this client speaks versions {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}"
    if kind == MessageKind.ERROR and isinstance(body, ErrorReply):
        code = code_of(body.code)
        sentence = body.message
        if code == ErrorCode.BAD_VERSION:
            sentence = f"{sentence} ({own})"
        raise AttachError(sentence, code=code, retry=body.retry)
    if kind != MessageKind.WELCOME or not isinstance(body, Welcome):
        raise ReplyError(f"a hello was answered by {type(body).__name__} ({kind.value})")
    if not PROTOCOL_VERSION_MIN <= body.version <= PROTOCOL_VERSION:
        raise AttachError(
            f"the daemon chose protocol version {body.version}; {own}", code=ErrorCode.BAD_VERSION
        )
    return body


def _started_at() -> str:
    """Return when this process started, in clock ticks after boot: for display beside the pid."""
    try:
        text = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    # Field 22; the second field may hold blanks and ends with the last parenthesis.
    return text.rpartition(")")[2].split()[19]
