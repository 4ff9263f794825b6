"""A rank of a stress run on a GPU: forwards and transfers are kernels on streams of their own.

They take their time: kernels that only wait are drawn in front of them and between them. Nothing
says in which order streams come, so what should wait and does not is seen in the bytes.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from kvd.testing.stress.checked_rank import INT32_BYTES
from kvd.testing.stress.contents import WORD_BYTES, Indices, Tags
from kvd.testing.stress.cuda_words import DeviceWords
from kvd.testing.stress.plans import ForwardPlan, PeerPlan
from kvd.testing.stress.played_rank import PlayedPeer, PlayedRank
from kvd_client import Client
from kvd_client.device.port import Device, Event, Stream
from kvd_client.launch import Step

if TYPE_CHECKING:
    from kvd.errors import StressFailure

DELAY_US_MAX: Final = 400
"""How long a kernel may keep a stream busy."""
DELAY_PERMILLE: Final = 300
"""Of how many places where a delay may be."""
NETWORK_STREAMS_COUNT: Final = 2

Report: TypeAlias = Callable[[int, int], None]
"""Says that a place of a comparison was found to hold something else."""


class Subjects:
    """Comparisons that were enqueued, by number, so that what they find can be said in words."""

    def __init__(self) -> None:
        """Start empty."""
        self._newest = 0
        self._reports: dict[int, Report] = {}

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: Report) -> int:
        """Return the number of a comparison."""
        self._newest += 1
        self._reports[self._newest] = report
        return self._newest

    def report(self, subject: int, place: int, found: int) -> None:
        """Say what a comparison found."""
        self._reports[subject](place, found)

    def clear(self) -> None:
        """Forget comparisons that are over and that found nothing more."""
        self._reports.clear()


class CudaPeer(PlayedPeer):
    """A transfer on one rank, played by kernels."""

    def __init__(self, plan: PeerPlan, position: int) -> None:
        """Begin with nothing known but what the log says."""
        super().__init__(plan, position)
        self.end: Event | None = None
        self.wrong: StressFailure | None = None
        """What a send found where its owner had something else; counts once it ends well."""

    @property
    def ended(self) -> bool:
        """Return whether the network is done with it."""
        return self.end is not None and self.end.reached


class CudaRank(PlayedRank[CudaPeer]):
    """One rank on a GPU."""

    def __init__(
        self,
        *,
        index: int,
        device: Device,
        client: Client,
        words: DeviceWords,
        subjects: Subjects,
        random: Random,
        takes_turns: bool = False,
    ) -> None:
        """Take over an attached client; ``random`` is what delays are drawn from.

        With ``takes_turns`` forwards take turns on two streams.
        """
        self._at_rest = np.zeros(client.plan.total_bytes, dtype=np.uint8)
        # Not every device copies to host pools, and this one does not: see `cuda_run.LEFT_OUT`.
        super().__init__(index=index, client=client, memory_bytes=self._at_rest, pool_places=0)
        self._address = client.memory.address
        self._kernels = words
        self._subjects = subjects
        self._random = random
        self._network = [
            device.stream(f"network {index}/{nth}") for nth in range(NETWORK_STREAMS_COUNT)
        ]
        self._second = device.stream(f"second forward {index}") if takes_turns else None
        self._own = [*self._network, *([] if self._second is None else [self._second])]
        """Streams that are not the client's."""

    def stream_of(self, step: int) -> Stream | None:
        """Return the stream of a forward; None for the one that the client has for them."""
        return self._second if step % 2 == 0 else None

    def kill(self) -> None:
        """Fail: ranks of one process have one context, and cannot die apart."""
        raise NotImplementedError("ranks of one process do not die on a GPU")

    # ---- forwards -------------------------------------------------------------------------------

    def enqueue_forward(self, step: Step, plan: ForwardPlan, *, silent: bool) -> None:
        """Enqueue a forward inside its launch block."""
        self._delay(step.submit)
        step.submit(partial(self._read_tables, plan))
        if not silent:
            step.reads_done()
        self._delay(step.submit)
        step.submit(partial(self._run, plan))

    def _read_tables(self, plan: ForwardPlan) -> None:
        self._check(
            plan.table_cells,
            plan.table_values,
            INT32_BYTES,
            lambda place, found: self.report_table(plan, place, found),
        )

    def _run(self, plan: ForwardPlan) -> None:
        self._check(
            plan.page_words,
            plan.page_tags,
            WORD_BYTES,
            lambda place, found: self.report_word(plan, place, found),
        )
        self.checked_words_count += plan.page_words.size
        self._kernels.write(self._address, plan.write_words, plan.write_tags)

    # ---- peers ----------------------------------------------------------------------------------

    def new_peer(self, plan: PeerPlan, position: int) -> CudaPeer:
        """Return a transfer that nothing is known of yet."""
        return CudaPeer(plan, position)

    def post(self, peer: CudaPeer) -> None:
        """Tell the network the places of a transfer."""
        if peer.let_go:
            self.release(peer)

    def release(self, peer: CudaPeer) -> None:
        """Let the network begin with a transfer that it was told of."""
        if peer.end is None:
            stream = self._network[peer.plan.number % NETWORK_STREAMS_COUNT]
            self._delay(stream.submit)
            stream.submit(partial(self._transfer, peer))
            peer.end = stream.record()

    def check_shipped(self, peer: CudaPeer) -> None:
        """Say what was found when the peer read."""
        if peer.wrong is not None:
            self.findings.append(peer.wrong)

    def _transfer(self, peer: CudaPeer) -> None:
        plan = peer.plan
        for (starts, unit_bytes), words in zip(plan.starts, plan.words, strict=True):
            at = starts[:, None] // WORD_BYTES + np.arange(unit_bytes // WORD_BYTES, dtype=np.int64)
            places, tags = at.reshape(-1), words.reshape(-1)
            if plan.writes:
                self._kernels.write(self._address, places, tags)
            else:
                self._check(places, tags, WORD_BYTES, partial(self._note_shipped, peer, tags))

    def _note_shipped(self, peer: CudaPeer, tags: Tags, place: int, found: int) -> None:
        if peer.wrong is None:
            peer.wrong = self.shipped_wrong(peer.plan.number, found, int(tags[place]))

    # ---- at rest --------------------------------------------------------------------------------

    def check_at_rest(self, words: Indices, tags: Tags, describe: Callable[[int], str]) -> None:
        """Compare words of the arena while nothing runs."""
        content = self.client.memory.read_bytes(0, self._at_rest.size)
        self._at_rest[:] = np.frombuffer(content, dtype=np.uint8)
        super().check_at_rest(words, tags, describe)

    def hold_up(self, delay_us: int) -> None:
        """Keep the allocator's stream busy."""
        self.client.stream.submit(partial(self._kernels.spend, delay_us))

    def settle(self, deadline_ms: int) -> None:
        """Block until everything enqueued is over."""
        for stream in (self.client.stream, self.client.forward_stream, *self._own):
            stream.synchronize(deadline_ms)

    def close(self, deadline_ms: int) -> None:
        """End the streams that are not the client's."""
        for stream in self._own:
            stream.close(deadline_ms)

    # ---- inside ---------------------------------------------------------------------------------

    def _delay(self, submit: Callable[[Callable[[], None]], None]) -> None:
        """Keep a stream busy, at times."""
        if self._random.randrange(1000) < DELAY_PERMILLE:
            submit(partial(self._kernels.spend, self._random.randrange(1, DELAY_US_MAX)))

    def _check(self, places: Indices, expected: Tags, word_bytes: int, report: Report) -> None:
        self._kernels.check(
            self._address,
            places,
            expected,
            word_bytes=word_bytes,
            subject=self._subjects.add(report),
        )
