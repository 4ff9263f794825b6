"""Launches and batches that interleave: a scheduler beside a model runner, tasks of one loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from kvd.testing.forward import ForwardBuilder
from kvd.testing.painter import ArenaPainter
from kvd.testing.passes import StepWork
from kvd_client import STANDING, Client, StepAborted, aio
from kvd_proto.codec import decode_fact
from kvd_proto.scalars import RequestId
from tests.client.engine_daemon import LAYERS, EngineDaemon
from tests.client.engine_daemon import admit_three_tokens_each as admit

PROMPT_TOKENS = 3
LENGTH_TOKENS = 20
STEPS_COUNT = 120
RUNNING_COUNT = 6
DEADLINE_MS = 10_000


class Scheduler:
    """Decides batches in a thread of its own; requests end at a fixed length, others come."""

    def __init__(self, kv: Client) -> None:
        self._kv = kv
        self._lengths: dict[int, int] = {}
        self._next_id = 1
        self.freed: list[int] = []

    def next_work(self, processed: int) -> StepWork:
        """Free who is done, take a token for everybody else, and let new ones in: one batch."""
        done = [one for one, length in self._lengths.items() if length == LENGTH_TOKENS]
        for request in done:
            del self._lengths[request]
        self.freed = done
        running = dict(self._lengths)
        count = min(2, RUNNING_COUNT - len(running))
        fresh = list(range(self._next_id, self._next_id + count))
        self._next_id += count
        with self._kv.batch() as batch:
            if processed:
                batch.processed(processed)
            batch.free(done)
            if running:
                batch.advance(STANDING)
                batch.take(STANDING)
            admitted = batch.admit(
                fresh,
                prompt_tokens=[PROMPT_TOKENS] * count,
                new_tokens_max=[LENGTH_TOKENS] * count,
                take_tokens=[PROMPT_TOKENS] * count,
            )
            batch.standing(add=fresh)
        # The answers are there although the batch may not be applied for a while.
        assert not getattr(admitted(), "refusals", ())
        starts = (*running.values(), *(0 for _ in fresh))
        counts = (*(1 for _ in running), *(PROMPT_TOKENS for _ in fresh))
        requests = (*running, *fresh)
        for request, start, more in zip(requests, starts, counts, strict=True):
            self._lengths[request] = start + more
        ids = tuple(RequestId(request) for request in requests)
        ending = tuple(one for one in ids if self._lengths[one] == LENGTH_TOKENS)
        return StepWork(ids, starts, counts, ending, ())


def test_every_byte_is_right_where_batches_are_sent_inside_launches() -> None:
    """Batch n + 1 is decided while launch n is open, so all of its effects go through the queue."""
    with EngineDaemon().attach(overlap=True) as kv, ThreadPoolExecutor(1) as thread:
        scheduler, forward = Scheduler(kv), ForwardBuilder(kv)
        painter = ArenaPainter(kv.plan, kv.arena_array(), rank_index=0, corruption=None)
        asked: Future[StepWork] = thread.submit(scheduler.next_work, 0)
        for number in range(1, STEPS_COUNT + 1):
            work = asked.result()
            forward.forget([RequestId(one) for one in scheduler.freed])
            with kv.launch(writes=work.requests) as step:
                assert step.number == number
                asked = thread.submit(scheduler.next_work, number - 1)
                asked.result()
                assert kv.applied == step.position
                job = forward.build(work)
                step.reads_done()
                step.submit(partial(painter.run, job))
            kv.check()
        kv.forward_stream.synchronize(DEADLINE_MS)

        assert painter.statistics().mismatches == ()
        assert painter.statistics().checked_units > 100


# ---- one event loop ----------------------------------------------------------------------------


def run(scenario: Callable[[EngineDaemon, aio.AsyncClient], object]) -> None:
    async def main() -> None:
        daemon = EngineDaemon()
        async with await aio.attach(
            "ipc:///nowhere",
            group="g",
            declare=LAYERS,
            deadline_ms=DEADLINE_MS,
            transport=daemon.transport(),
            overlap=True,
        ) as kv:
            async with kv.batch() as batch:
                batch.admit([1], prompt_tokens=[3], new_tokens_max=[9], take_tokens=[3])
                batch.standing(add=[1])
            awaited = scenario(daemon, kv)
            assert asyncio.iscoroutine(awaited)
            await awaited

    asyncio.run(main())


def test_a_task_sends_a_batch_while_another_is_inside_a_launch() -> None:
    async def scenario(_: EngineDaemon, kv: aio.AsyncClient) -> None:
        async def take() -> None:
            async with kv.batch() as batch:
                batch.take(STANDING)

        async with kv.launch(writes=STANDING) as step:
            await asyncio.create_task(take())
            assert kv.applied == step.position
            assert kv.lengths([1]).tolist() == [3]
        assert kv.lengths([1]).tolist() == [4]
        async with kv.launch(tables=[kv.state_slots([1])]) as step:
            assert step.number == 2

    run(scenario)


def test_a_launch_of_a_task_that_is_left_by_an_exception_is_waited_for_whole() -> None:
    async def scenario(daemon: EngineDaemon, kv: aio.AsyncClient) -> None:
        async def fail() -> None:
            async with kv.launch() as step:
                step.reads_done()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

        assert decode_fact(daemon.facts[-1]) == StepAborted(1)
        _, end = kv.session.last_forward or (None, None)
        assert kv.session.applier._barrier is end is not None  # pyright: ignore[reportPrivateUsage]

    run(scenario)


def test_a_task_that_is_cancelled_before_its_block_leaves_no_launch_open() -> None:
    async def scenario(daemon: EngineDaemon, kv: aio.AsyncClient) -> None:
        def cancel() -> None:
            raise asyncio.CancelledError

        report = kv._send_report  # pyright: ignore[reportPrivateUsage]
        kv._send_report = cancel  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await kv.launch().__aenter__()
        kv._send_report = report  # type: ignore[method-assign]

        await kv.ping()
        assert decode_fact(daemon.facts[-1]) == StepAborted(1)
        async with kv.launch() as step:
            assert step.number == 2

    run(scenario)


def test_clients_with_one_thread_at_a_time_serve_several() -> None:
    with EngineDaemon().attach(overlap=True) as kv, ThreadPoolExecutor(4) as threads:
        admit(kv, [1])

        def take() -> None:
            with kv.batch() as batch:
                batch.take([1])

        for future in [threads.submit(take) for _ in range(16)]:
            future.result()

        assert kv.lengths([1]).tolist() == [3 + 16]
