"""What both clients are: one attached rank with its memory, tables and views. No waiting here."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvd_client.calls import Ids
from kvd_client.device.apply import Applier
from kvd_client.device.descriptors import close_all
from kvd_client.device.fences import ALLOCATOR_LANE, FORWARD_LANE, STEP_LANE, FencePage
from kvd_client.device.host_pool import HostPool
from kvd_client.device.port import Device, Memory, Stream
from kvd_client.device.redo import redo
from kvd_client.errors import KvdClientError, ReplyError
from kvd_client.launch import Launching, Table
from kvd_client.results import Int32s, Int64s, Ragged, stamped, stamped_lists
from kvd_client.session import Session
from kvd_client.table_check import TableCheck
from kvd_client.transport import MemoryDescriptor, Transport, ZmqTransport
from kvd_client.views import FP8Kind, LayerViews, Tensor
from kvd_proto.codec import decode_reply
from kvd_proto.control import Mode, Welcome
from kvd_proto.memory import ModelRole, StoragePlan
from kvd_proto.outcomes import ReleasedResult

ARENA_NAME = "arena"
FENCE_NAME = "fence"
DEADLINE_MS: Final = 30_000
"""Default deadline of one round trip: longer than any decision, shorter than a hung engine's."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Mappings and streams of one rank, and what closes those that are ours."""

    device: Device
    memory: Memory
    fences: FencePage
    stream: Stream
    """The allocator's."""
    forward: Stream
    """The forwards'; the same one without overlap."""
    own_forward: bool
    overlaps: bool


@contextmanager
def connecting(address: str, transport: Transport | None) -> Generator[Transport]:
    """Give the way to the daemon, and close it if attaching does not succeed."""
    way = ZmqTransport(address) if transport is None else transport
    with ExitStack() as stack:
        stack.callback(way.close)
        yield way
        stack.pop_all()


def map_memory(
    granted: dict[str, MemoryDescriptor],
    *,
    plan: StoragePlan,
    device: Device,
    forward: Stream | None,
    overlap: bool,
) -> RankMemory:
    """Map what the daemon handed out and start the streams; closes the descriptors.

    With ``overlap`` effects have a stream of their own, otherwise they share the forwards'. Raises
    ReplyError if something is missing or too small.
    """
    try:
        missing = [name for name in (ARENA_NAME, FENCE_NAME) if name not in granted]
        if missing:
            raise ReplyError(f"the daemon handed out {sorted(granted)}, {missing} is missing")
        arena = granted[ARENA_NAME]
        if arena.size_bytes < plan.total_bytes:
            raise ReplyError(
                f"the arena has {arena.size_bytes} bytes, the plan needs {plan.total_bytes}"
            )
        fences = FencePage(granted[FENCE_NAME].descriptor)
        memory = device.map(arena.descriptor, plan.total_bytes)
    finally:
        # Mappings outlive their descriptors.
        close_all([one.descriptor for one in granted.values()])
    own_forward = forward is None
    if overlap:
        stream = device.stream("allocator", fences.lane(ALLOCATOR_LANE))
        forward = forward or device.stream("forward", fences.lane(FORWARD_LANE))
    else:
        stream = forward = forward or device.stream("forward", fences.lane(ALLOCATOR_LANE))
    return RankMemory(device, memory, fences, stream, forward, own_forward, overlap)


class Rank:
    """One attached rank: its plan, memory, tables and views."""

    def __init__(
        self,
        *,
        welcome: Welcome,
        program: int,
        mode: Mode,
        transport: Transport,
        mapped: RankMemory,
        deadline_ms: int,
    ) -> None:
        self.welcome = welcome
        self.deadline_ms = deadline_ms
        self._mapped = mapped
        self._transport = transport
        if welcome.redo:
            self._redo(welcome)
        applier = Applier(
            device=mapped.device,
            memory=mapped.memory,
            plan=welcome.plan,
            stream=mapped.stream,
            applied=welcome.position,
            overlaps=mapped.overlaps,
            follows=mode == Mode.FOLLOWER,
            fences=mapped.fences,
        )
        # Contents are never assumed: an earlier incarnation may have left its tables here.
        applier.clear()
        applier.prewarm()
        self.session = Session(
            welcome=welcome,
            program=program,
            mode=mode,
            applier=applier,
            deadline_ms=deadline_ms,
            overlaps=mapped.overlaps,
        )
        self.table_check = TableCheck(self.session, mapped.memory, mapped.stream)
        self._views = LayerViews(welcome.plan, mapped.memory)

    @property
    def plan(self) -> StoragePlan:
        """Return where everything lies in this rank's memory."""
        return self.welcome.plan

    @property
    def epoch(self) -> int:
        """Return the daemon's epoch at attach."""
        return self.welcome.epoch

    @property
    def values(self) -> tuple[int, ...]:
        """Return the values of the incarnation before that survived, ascending."""
        return self.welcome.values

    @property
    def incarnation(self) -> int:
        """Return the number of the group's incarnation."""
        return self.welcome.incarnation

    @property
    def mode(self) -> Mode:
        """Return how this rank agrees with the others."""
        return self.session.mode

    @property
    def program(self) -> int:
        """Return the number of the program whose operations this rank sends or follows."""
        return self.session.program

    @property
    def applied(self) -> int:
        """Return the position up to which effects are enqueued on the stream."""
        return self.session.applied

    @property
    def step(self) -> int:
        """Return the number of the last step launched; 0 before the first."""
        return self.session.steps.launched

    @property
    def device(self) -> Device:
        """Return the kind of memory that the arena is made of."""
        return self._mapped.device

    @property
    def memory(self) -> Memory:
        """Return the mapping of arena and tables."""
        return self._mapped.memory

    @property
    def fences(self) -> FencePage:
        """Return the fence page, whose lanes tell other processes how far streams are."""
        return self._mapped.fences

    @property
    def stream(self) -> Stream:
        """Return the allocator's stream; without overlap forwards run on it too."""
        return self._mapped.stream

    @property
    def forward_stream(self) -> Stream:
        """Return the stream that launches run on unless they name another."""
        return self._mapped.forward

    @property
    def overlaps(self) -> bool:
        """Return whether effects run beside forwards, so that several steps may be in flight."""
        return self._mapped.overlaps

    @property
    def standing(self) -> Int64s:
        """Return the ids of the standing set in the order in which they joined it."""
        return self.session.book.standing.copy()

    def arena_array(self) -> NDArray[np.uint8]:
        """Return the bytes of the bands, ``[0, arena_bytes)``, as an array over the mapping."""
        self.session.check_process()
        return np.frombuffer(self.memory.buffer, dtype=np.uint8, count=self.plan.arena_bytes)

    def views(
        self, layer: int, *, model: ModelRole = ModelRole.TARGET, fp8: FP8Kind = "uint8"
    ) -> tuple[Tensor, ...]:
        """Return the tensors of a layer, strided as they lie in the arena, in the plan's order.

        ``(k, v)``, ``(latent,)`` or the convolution tails and the recurrent state; dimension 0 is
        the token place of the band, or the slot. ``fp8`` says how an fp8 cache is typed. Raises
        UsageError for a layer that this stage does not store.
        """
        self.session.check_process()
        return self._views.tensors(layer, model=model, fp8=fp8)

    def host_pool(self, band: str, units: int) -> HostPool:
        """Return a new host pool of a band, with room for so many of its units.

        Loads read it and backups write it, by the places that `Batch.load_submit` and
        `Batch.backup` name. Raises UsageError for no such band, or one that has a pool.
        """
        self.session.check_usable()
        return self.session.applier.copies.add_pool(band, units)

    def take_released(self) -> list[ReleasedResult]:
        """Return what became known to be over on all ranks since this was called last.

        Copies and transfers are over for everybody where the log says so: from the next operation
        on their pages may be sent, advanced, or freed.
        """
        cursor = self.session.cursor
        released, cursor.released = cursor.released, []
        return released

    def rows(self, ids: Ids) -> Int64s:
        """Return the request row of each id; raises UnknownRequestError."""
        self.session.check_usable()
        return self.session.book.rows(ids)

    def lengths(self, ids: Ids) -> Int64s:
        """Return the tokens that each request has taken; raises UnknownRequestError."""
        return self.session.book.lengths(self.rows(ids))

    def write_slots(self, band: str, ids: Ids) -> Ragged:
        """Return where in a band the tokens of each request's last take go.

        A place is the physical page times the page's tokens plus the offset: an index into
        dimension 0 of the band's views. Raises UnknownRequestError; UsageError for no such
        band; StepOrderError, as all tables do, after `Step.reads_done` of an open step.
        """
        rows, book = self._table_rows("write_slots", ids), self.session.book
        mirror = self.session.mirror
        slots = mirror.write_slots(
            mirror.token_band(band), rows, book.starts(rows), book.lengths(rows)
        )
        return stamped_lists(slots, self.session.cursor.stamp)

    def page_table(self, band: str, ids: Ids) -> Ragged:
        """Return each request's physical pages in a band, end to end with their borders.

        Pages that slid out of a window, or are not bound in the band, read 0: the sink.
        """
        rows, mirror = self._table_rows("page_table", ids), self.session.mirror
        lengths = self.session.book.lengths(rows)
        table = mirror.page_table(mirror.token_band(band), rows, lengths)
        return stamped_lists(table, self.session.cursor.stamp)

    def block_table(self, band: str, ids: Ids, *, columns: int | None = None) -> Int32s:
        """Return each request's physical pages in a band as a table padded with 0.

        It is as wide as the longest request, or ``columns`` wide; raises UsageError if that is not
        enough.
        """
        rows, mirror = self._table_rows("block_table", ids), self.session.mirror
        lengths = self.session.book.lengths(rows)
        table = mirror.block_table(mirror.token_band(band), rows, lengths, columns_count=columns)
        return stamped(table, self.session.cursor.stamp)

    def virtual_pages(self, ids: Ids) -> Ragged:
        """Return each request's virtual pages, the names that survive moves."""
        rows = self._table_rows("virtual_pages", ids)
        pages, indptr = self.session.mirror.pages(rows, self.session.book.lengths(rows))
        table = Ragged(pages.astype(np.int64), indptr.astype(np.int32))
        return stamped_lists(table, self.session.cursor.stamp)

    def state_slots(self, ids: Ids) -> Int64s:
        """Return the physical state slot of each request; raises UsageError without states."""
        slots = self.session.mirror.state_slots(self._table_rows("state_slots", ids))
        return stamped(slots, self.session.cursor.stamp)

    def check(self) -> None:
        """Raise KvdClientError naming the first invariant of this client that does not hold."""
        self.session.book.check()
        self.session.steps.check()
        self.session.cursor.check()

    def new_launch(
        self,
        stream: Stream | None,
        *,
        step: int | None,
        position: int | None,
        writes: Ids | None,
        tables: Sequence[Table],
    ) -> Launching:
        """Return a launch that was asked for; for the launch blocks of the clients."""
        return Launching(
            self.session,
            allocator=self.stream,
            forward=stream or self.forward_stream,
            lane=self.fences.lane(STEP_LANE),
            number=step,
            position=position,
            writes=writes,
            tables=tables,
        )

    def _table_rows(self, what: str, ids: Ids) -> Int64s:
        """Return the rows to make a table of; raises StepOrderError if it comes too late."""
        self.session.steps.check_readable(what)
        return self.rows(ids)

    def _redo(self, welcome: Welcome) -> None:
        """Bring memory in which values survived to the end of the log before; raises ReplyError."""
        reply = decode_reply(welcome.redo)
        end_position = redo(
            device=self._mapped.device,
            memory=self._mapped.memory,
            plan=welcome.plan,
            stream=self._mapped.stream,
            first_position=reply.position,
            entries=reply.entries,
        )
        if end_position != welcome.position:
            raise ReplyError(
                f"entries up to {end_position} came to be redone, the log goes on behind "
                f"{welcome.position}"
            )

    def _send_report(self) -> None:
        """Tell the daemon that this rank failed, if it just did; the answer is of no use."""
        report = self.session.take_report()
        if report is not None:
            with suppress(KvdClientError):
                self._transport.send(report)

    def _release(self) -> None:
        """Close everything that is ours, the connection last and in any case."""
        self.session.closed = True
        with ExitStack() as stack:
            stack.callback(self._transport.close)
            stack.callback(self._mapped.memory.close)
            stack.callback(self._views.close)
            self._end_streams()
            # Only now, and not if a stream did not run dry.
            self._transport.let_go()

    def _end_streams(self) -> None:
        """Let the streams run dry, so that nothing touches the memory when the connection ends.

        The fence page goes last, and only then: whatever still plays a stream writes to it.
        """
        mapped = self._mapped
        self.session.applier.copies.close(self.deadline_ms)
        # Each may wait for events of the other, and those were recorded: the order does not matter.
        if mapped.own_forward:
            mapped.forward.close(self.deadline_ms)
        else:
            mapped.forward.synchronize(self.deadline_ms)
        if mapped.overlaps:
            mapped.stream.close(self.deadline_ms)
        mapped.fences.close()
