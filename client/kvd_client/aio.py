"""The asyncio client: the blocking client's calls, awaited. It runs the same flows."""

import asyncio
from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import Self

from kvd_client.calls import Batch, Ids
from kvd_client.device.host.device import host_device
from kvd_client.device.port import Device, Stream
from kvd_client.errors import KvdClientError, ReplyError, TablesError
from kvd_client.flow import Exchange, Flow
from kvd_client.hello import Config, build_hello, declaration_of, hello_message, read_welcome
from kvd_client.launch import Launching, Step, Table
from kvd_client.rank import DEADLINE_MS, Rank, connecting, map_memory
from kvd_client.transport import Transport, exchange_async
from kvd_proto.control import Mode, Role, WhatIf, WhatIfReply
from kvd_proto.memory import Declaration, SizingInputs
from kvd_proto.operations import AnyFact

__all__ = ["AsyncBatchBlock", "AsyncClient", "AsyncLaunchBlock", "attach"]


async def attach(
    address: str,
    *,
    group: str,
    stage: int = 0,
    rank: int = 0,
    tp: int = 1,
    pp: int = 1,
    program: int = 0,
    mode: Mode = Mode.MIRRORED,
    role: Role = Role.SCHEDULER,
    declare: Config | Declaration,
    draft: Config | None = None,
    sizing: SizingInputs | None = None,
    deadline_ms: int = DEADLINE_MS,
    attach_deadline_ms: int | None = None,
    transport: Transport | None = None,
    device: Device | None = None,
    stream: Stream | None = None,
    overlap: bool = False,
) -> "AsyncClient":
    """Attach this process as one rank; see `kvd_client.attach`.

    Connecting and fetching the descriptors are local and short, so they do block the loop; waiting
    for the group does not.
    """
    wait_ms = deadline_ms if attach_deadline_ms is None else attach_deadline_ms
    hello = build_hello(
        group=group,
        stage=stage,
        rank=rank,
        tp=tp,
        pp=pp,
        program=program,
        role=role,
        mode=mode,
        declare=declaration_of(declare, draft, group),
        sizing=sizing,
        overlap=overlap,
        gpu_uuid="" if device is None else device.gpu_uuid,
    )
    with connecting(address, transport) as way:
        message = hello_message(hello, way.open(wait_ms))
        await exchange_async(way, message, wait_ms)
        welcome = read_welcome(message)
        rank_memory = map_memory(
            way.fetch(welcome.token, wait_ms),
            plan=welcome.plan,
            device=device or host_device(),
            forward=stream,
            overlap=overlap,
        )
        return AsyncClient(
            welcome=welcome,
            program=program,
            mode=mode,
            transport=way,
            mapped=rank_memory,
            deadline_ms=deadline_ms,
        )


class AsyncClient(Rank):
    """A rank whose calls are awaited; one task at a time is served, the others queue up."""

    @cached_property
    def _turn(self) -> asyncio.Lock:
        return asyncio.Lock()

    def batch(self) -> "AsyncBatchBlock":
        """Open a block of operations with ``async with``; see `kvd_client.Client.batch`."""
        return AsyncBatchBlock(self)

    def launch(
        self,
        stream: Stream | None = None,
        *,
        step: int | None = None,
        position: int | None = None,
        writes: Ids | None = None,
        tables: Sequence[Table] = (),
    ) -> "AsyncLaunchBlock":
        """Open the block of one forward with ``async with``; see `kvd_client.Client.launch`."""
        launching = self.new_launch(
            stream, step=step, position=position, writes=writes, tables=tables
        )
        return AsyncLaunchBlock(self, launching)

    async def follow(
        self, position: int, *, records: Sequence[bytes] = (), deadline_ms: int | None = None
    ) -> None:
        """Apply the log up to a position, no further; see `kvd_client.Client.follow`."""
        await self.run(self.session.follow(position, records, deadline_ms or self.deadline_ms))

    async def fact(self, fact: AnyFact) -> None:
        """State a fact of this rank."""
        await self.run(self.session.state_fact(fact))

    async def ping(self) -> None:
        """Show the daemon that this rank lives; an idle client does it within the heartbeat."""
        await self.run(self.session.ping())

    async def what_if(
        self,
        demand_units: Sequence[int] = (),
        *,
        prompt_tokens: int = 0,
        new_tokens_max: int = 0,
        chunk_tokens: int = 0,
    ) -> WhatIfReply:
        """Ask whether a demand would fit now, after which rearrangement, and what it would move.

        Either units per band in chain order, or a request by its tokens; the answer also says how
        many new tokens memory can ever grant it. Changes nothing.
        """
        question = WhatIf(
            demand_units=tuple(demand_units),
            prompt_tokens=prompt_tokens,
            new_tokens_max=new_tokens_max,
            chunk_tokens=chunk_tokens,
        )
        await self.run(self.session.what_if(question))
        reply = self.session.what_if_reply
        assert reply is not None
        return reply

    async def memory_clip(
        self, prompt_tokens: int, new_tokens_max: int, chunk_tokens: int = 0
    ) -> int:
        """Return the new tokens that memory can ever grant; see `kvd_client.Client.memory_clip`."""
        reply = await self.what_if(
            prompt_tokens=prompt_tokens, new_tokens_max=new_tokens_max, chunk_tokens=chunk_tokens
        )
        return reply.new_tokens

    async def check_tables(self) -> int:
        """Compare this rank's tables with the books; see `kvd_client.Client.check_tables`."""
        await self.run(self.table_check.asked())
        return self.table_check.tables_count

    async def close(self) -> None:
        """Say goodbye, which ends the incarnation, and release everything; harmless when repeated.

        With the daemon's check level ``strict`` the tables are compared first, as `check_tables`
        does where it can. Raises ForkedError in a fork, and TablesError when everything is
        released; an answer that does not come keeps nothing open.
        """
        self.session.check_process()
        if self.session.closed:
            return
        try:
            await self.run(self.table_check.leaving())
        except TablesError:
            raise
        except KvdClientError:
            # Without an answer, or without a session, the end of the lifeline says it all.
            pass
        finally:
            self._release()

    async def run(self, flow: Flow) -> None:
        """Run a flow of the session to its end; a cancellation leaves it to the next call."""
        async with self._turn:
            try:
                for command in flow:
                    if isinstance(command, Exchange):
                        await exchange_async(self._transport, command.message, command.deadline_ms)
                    else:
                        await asyncio.to_thread(command.wait)
            except ReplyError as error:
                self.session.poison(error.message)
                raise
            finally:
                self._send_report()

    async def __aenter__(self) -> Self:
        self.session.check_usable()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncBatchBlock:
    """The block of `AsyncClient.batch`."""

    __slots__ = ("_batch", "_client")

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._batch: Batch | None = None

    async def __aenter__(self) -> Batch:
        client = self._client
        await client.run(client.session.settle())
        self._batch = client.session.new_batch()
        return self._batch

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        batch = self._batch
        assert batch is not None
        batch.close()
        if kind is None:
            await self._client.run(self._client.table_check.sending(batch))


class AsyncLaunchBlock:
    """The block of `AsyncClient.launch`."""

    def __init__(self, client: AsyncClient, launching: Launching) -> None:
        self._client = client
        self._launching = launching

    async def __aenter__(self) -> Step:
        client = self._client
        try:
            await client.run(self._launching.opening(client.deadline_ms))
        except BaseException:
            self._launching.abandon()
            raise
        return self._launching.step

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        step = self._launching.step
        step.end(aborted=error is not None)
        if error is None:
            return
        try:
            await self._client.fact(step.aborted())
        except KvdClientError as late:
            error.add_note(f"step {step.number} could not be reported as aborted yet: {late}")
