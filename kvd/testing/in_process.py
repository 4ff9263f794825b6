"""A daemon without a process: the real engine of one stage behind a function."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NewType

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage
from kvd.engine.incarnation import Incarnation
from kvd.engine.legacy import Legacy
from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import PAGE_BYTES, create_fence_page
from kvd_client.mock import Answer, MockTransport
from kvd_client.rank import ARENA_NAME, FENCE_NAME
from kvd_client.transport import MemoryDescriptor
from kvd_proto.codec import decode_control, encode
from kvd_proto.control import Ack, Books, ErrorReply, Header, MessageKind, Welcome, WhatIf
from kvd_proto.errors import KvdError
from kvd_proto.version import PROTOCOL_VERSION

IncarnationNumber = NewType("IncarnationNumber", int)
"""Counts the incarnations of a stage, from 1."""

FIRST: Final = IncarnationNumber(1)
EPOCH: Final = 7
TOKEN_START: Final = 100
"""The session token of rank 0; every rank has its own."""
FRAME_BYTES_MAX: Final = 1 << 20
LOG_ENTRIES_MAX: Final = 4096


class InProcessDaemon:
    """Answers like `kvd serve` for one stage of one group whose ranks all attach here."""

    def __init__(
        self,
        storage: StageStorage,
        *,
        ranks: int = 1,
        level: CheckLevel = CheckLevel.STRICT,
        idle_moves_max: int = 0,
        batch_moves_max: int = 0,
        told_level: CheckLevel | None = None,
        number: IncarnationNumber = FIRST,
        legacy: Legacy | None = None,
        redo: Sequence[bytes] = (),
        decides: type[Incarnation] = Incarnation,
    ) -> None:
        """Start an incarnation; ``told_level`` is what ranks are told instead of ``level``.

        A later one than the first goes on from a ``legacy``; ``redo`` says per rank what its memory
        lacks of the log before, and is empty where nothing survived. ``decides`` is what decides.
        """
        self.told_level = level if told_level is None else told_level
        self.storage = storage
        self._redo = redo
        self._start_position = 0 if legacy is None else legacy.end_position
        self.incarnation = decides(
            storage,
            number=number,
            ranks=tuple(range(ranks)),
            level=level,
            ring_entries_max=LOG_ENTRIES_MAX,
            lag_entries_max=LOG_ENTRIES_MAX,
            idle_moves_max=idle_moves_max,
            batch_moves_max=batch_moves_max,
            legacy=legacy,
        )
        self.asked_index = 0
        """Index of the message that came last, which an answer repeats."""

    def answer(self, rank: int, header: Header, body: bytes) -> list[Answer]:
        """Return the answers to one message of a rank."""
        self.asked_index = header.index
        try:
            return self._answer(rank, header, body)
        except KvdError as error:
            reply = ErrorReply(code=error.code.value, message=error.message, retry=error.retry)
            return [(self.header(rank, MessageKind.ERROR), encode(reply))]

    def header(self, rank: int, kind: MessageKind, index: int | None = None) -> Header:
        """Return the header of an answer, by default to the message that came last."""
        index = self.asked_index if index is None else index
        return Header(kind, EPOCH, TOKEN_START + rank, index, self.incarnation.log.end_position)

    def take_fact(self, rank: int, body: bytes) -> None:
        """Take in what a rank states."""
        self.incarnation.fact(rank, body)

    def _answer(self, rank: int, header: Header, body: bytes) -> list[Answer]:
        kind = header.kind
        if kind is MessageKind.HELLO:
            return [(Header(MessageKind.WELCOME), encode(self._welcome(rank)))]
        if kind is MessageKind.BATCH:
            self.incarnation.confirm(rank, header.position)
            end_index, reply = self.incarnation.batch(
                rank=rank, program=0, index=header.index, body=body
            )
            answer = self.header(rank, MessageKind.REPLY, end_index), reply
            self.incarnation.settle()
            return [answer]
        if kind is MessageKind.FOLLOW:
            self.incarnation.confirm(rank, header.position)
            reply_or_none = self.incarnation.follow(rank)
            if reply_or_none is None:
                return []
            return [(self.header(rank, MessageKind.REPLY), reply_or_none)]
        if kind is MessageKind.ASK:
            question = decode_control(body)
            if isinstance(question, Books):
                self.incarnation.confirm(rank, header.position)
                answered = encode(self.incarnation.books(rank))
            else:
                assert isinstance(question, WhatIf)
                answered = encode(self.incarnation.what_if(question))
            return [(self.header(rank, MessageKind.ASK), answered)]
        if kind is MessageKind.FACT:
            self.take_fact(rank, body)
        return [(self.header(rank, MessageKind.ACK), encode(Ack()))]

    def _welcome(self, rank: int) -> Welcome:
        plan = self.storage.storage
        return Welcome(
            version=PROTOCOL_VERSION,
            build="test",
            epoch=EPOCH,
            token=TOKEN_START + rank,
            incarnation=self.incarnation.number,
            heartbeat_ms=1_000,
            frame_bytes_max=FRAME_BYTES_MAX,
            next_index=0,
            position=self._start_position,
            redo=self._redo[rank] if self._redo else b"",
            values=tuple(self.incarnation.engine.requests.values.of_number),
            asked_bytes=plan.total_bytes,
            granted_bytes=plan.total_bytes,
            minimum_rank=0,
            plan=plan,
            check_level=self.told_level.word,
        )


class RankMemories:
    """Arena and fence page of every rank, kept as a daemon and its holder keep them."""

    def __init__(self, total_bytes: int, *, ranks: int) -> None:
        self._total_bytes = total_bytes
        self._stack = ExitStack()
        self._arenas = [self._kept(create_memory(f"arena-{i}", total_bytes)) for i in range(ranks)]
        self._pages = [self._kept(create_fence_page(f"fence-{i}")) for i in range(ranks)]

    def hand_out(self, rank: int) -> dict[str, MemoryDescriptor]:
        """Return descriptors of a rank's memory, which are the caller's to close."""
        return {
            ARENA_NAME: MemoryDescriptor(os.dup(self._arenas[rank]), self._total_bytes),
            FENCE_NAME: MemoryDescriptor(os.dup(self._pages[rank]), PAGE_BYTES),
        }

    def close(self) -> None:
        """Close all descriptors; mappings stay as long as they are used."""
        self._stack.close()

    def _kept(self, descriptor: int) -> int:
        self._stack.callback(os.close, descriptor)
        return descriptor

    def fill(self, rank: int, content: bytes) -> None:
        """Store bytes at the beginning of a rank's arena."""
        os.pwrite(self._arenas[rank], content, 0)

    def content(self, rank: int, start_bytes: int, end_bytes: int) -> bytes:
        """Return bytes of a rank's arena as whoever comes after it finds them."""
        return os.pread(self._arenas[rank], end_bytes - start_bytes, start_bytes)

    def renew_fences(self) -> None:
        """Have fresh fence pages: one never outlives its incarnation, as arenas do."""
        self._pages = [self._kept(create_fence_page(f"fence-{i}")) for i in range(len(self._pages))]


class InProcessTransport(MockTransport):
    """One rank's way to a daemon in the same process; memory outlives the connection."""

    def __init__(self, daemon: InProcessDaemon, memories: RankMemories, *, rank: int) -> None:
        super().__init__(lambda header, body: daemon.answer(rank, header, body))
        self._memories = memories
        self._rank = rank

    def fetch(self, token: int, deadline_ms: int) -> dict[str, MemoryDescriptor]:
        """Return descriptors of the memory that was made for the rank."""
        return self._memories.hand_out(self._rank)
