"""The asyncio client: the same calls, cancellation included."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvd_client import (
    STANDING,
    AsyncClient,
    ClosedError,
    MockTransport,
    Mode,
    StepAborted,
    Taken,
    aio,
)
from kvd_client.mock import Daemon
from kvd_client.transport import Frames
from kvd_proto.codec import decode_fact
from kvd_proto.control import Header, MessageKind
from tests.client.engine_daemon import LAYERS, Answer, EngineDaemon


class PatientTransport(MockTransport):
    """Waits for answers that are pushed later, as a socket does."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon)
        self.waiting = asyncio.Event()
        self._arrived = asyncio.Event()

    def push(self, header: Header, body: bytes) -> None:
        """Put an answer into the queue and wake whoever waits."""
        super().push(header, body)
        self._arrived.set()

    def receive(self) -> Frames:
        """Return the oldest answer."""
        self._arrived.clear()
        return super().receive()

    async def wait_async(self, deadline_ms: int) -> None:
        """Wait until an answer is there."""
        self.waiting.set()
        await asyncio.wait_for(self._arrived.wait(), deadline_ms / 1000)
        self.waiting.clear()


@asynccontextmanager
async def attached(
    daemon: EngineDaemon, rank: int = 0, mode: Mode = Mode.MIRRORED
) -> AsyncGenerator[AsyncClient]:
    transport = PatientTransport(lambda header, body: daemon.answer(rank, header, body))
    daemon.transports[rank] = transport
    client = await aio.attach(
        "ipc:///nowhere",
        group="g",
        rank=rank,
        mode=mode,
        declare=LAYERS,
        deadline_ms=5_000,
        transport=transport,
    )
    async with client:
        yield client


async def admit(kv: AsyncClient, ids: list[int]) -> bytes:
    async with kv.batch() as batch:
        batch.admit(
            ids,
            prompt_tokens=[3] * len(ids),
            new_tokens_max=[30] * len(ids),
            take_tokens=[3] * len(ids),
        )
        batch.standing(add=ids)
    return batch.record()


def run(test: Callable[[EngineDaemon], Coroutine[Any, Any, None]], *, ranks: int = 1) -> None:
    asyncio.run(test(EngineDaemon(ranks=ranks)))


def test_a_pass_is_one_message_and_a_launch() -> None:
    async def scenario(daemon: EngineDaemon) -> None:
        async with attached(daemon) as kv:
            await admit(kv, [1, 2])
            async with kv.launch() as step:
                step.reads_done()
            async with kv.batch() as batch:
                batch.processed(step.number)
                handle = batch.take(STANDING, 2)
            assert isinstance(handle(), Taken)
            assert kv.lengths(STANDING).tolist() == [5, 5]
            await kv.ping()

    run(scenario)


def test_a_cancelled_batch_is_applied_by_the_next_call() -> None:
    async def scenario(daemon: EngineDaemon) -> None:
        async with attached(daemon) as kv:
            await admit(kv, [1, 2])
            kept: list[Answer] = []

            def hook(rank: int, header: Header, body: bytes) -> list[Answer] | None:
                if header.kind is MessageKind.BATCH:
                    daemon.hook = None
                    kept.extend(daemon.serve(rank, header, body))
                    return []
                return None

            async def take() -> None:
                async with kv.batch() as batch:
                    batch.take(STANDING)

            daemon.hook = hook
            task = asyncio.create_task(take())
            transport = daemon.transports[0]
            assert isinstance(transport, PatientTransport)
            await transport.waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for answer in kept:
                transport.push(*answer)

            await take()

            assert kv.lengths([1, 2]).tolist() == [5, 5]
            assert daemon.batches() == 3
            kv.check()

    run(scenario)


def test_tasks_take_turns() -> None:
    async def scenario(daemon: EngineDaemon) -> None:
        async with attached(daemon) as kv:
            await admit(kv, [1])

            async def take() -> None:
                async with kv.batch() as batch:
                    batch.take([1])

            await asyncio.gather(take(), kv.ping(), take(), kv.ping(), take())

            assert kv.lengths([1]).tolist() == [6]

    run(scenario)


def test_a_launch_left_by_an_exception_is_reported() -> None:
    async def scenario(daemon: EngineDaemon) -> None:
        async with attached(daemon) as kv:
            await admit(kv, [1])
            with pytest.raises(ZeroDivisionError):
                async with kv.launch():
                    _ = 1 // 0
            assert decode_fact(daemon.facts[-1]) == StepAborted(1)

    run(scenario)


def test_a_follower_follows() -> None:
    async def scenario(daemon: EngineDaemon) -> None:
        async with (
            attached(daemon, 0, Mode.LEADER) as leader,
            attached(daemon, 1, Mode.FOLLOWER) as follower,
        ):
            record = await admit(leader, [1, 2])
            await follower.follow(leader.applied, records=[record])
            async with follower.launch(step=1, position=leader.applied):
                assert follower.lengths([1, 2]).tolist() == [3, 3]

    run(scenario, ranks=2)


def test_nothing_goes_after_close() -> None:
    async def scenario(daemon: EngineDaemon) -> None:
        async with attached(daemon) as kv:
            await kv.close()
            await kv.close()
            with pytest.raises(ClosedError):
                await kv.ping()
        assert daemon.transports[0].sent[-1][0].kind is MessageKind.BYE

    run(scenario)


def test_the_memory_clip_is_awaited_too() -> None:
    async def scenario(daemon: EngineDaemon) -> None:
        async with attached(daemon) as kv:
            assert await kv.memory_clip(4, 20) == 20
            assert await kv.memory_clip(64, 1, chunk_tokens=4) == 0

    run(scenario)
