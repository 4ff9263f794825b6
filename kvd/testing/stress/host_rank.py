"""A rank of a stress run on the host device: a real client of a real daemon, in a real process.

Forwards run on the host device's streams at their own pace, transfers in threads of their own. What
is compared is what `CheckedRank` compares; races show as bytes that are not what they should be.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

from kvd.testing.stress.checked_rank import CheckedRank
from kvd.testing.stress.plans import ForwardPlan, PeerPlan
from kvd_client import Client
from kvd_client.device.host.memory import HostMemory
from kvd_client.device.port import Event
from kvd_client.launch import Step

DELAY_S_MAX: Final = 0.002
"""How long a forward or a transfer may take."""
NETWORK_THREADS_COUNT: Final = 2

Payload = npt.NDArray[np.uint8]


@dataclass(slots=True)
class HostPeer:
    """A transfer of one rank, and what every rank has said about it so far."""

    plan: PeerPlan
    position: int
    """Up to where this rank must have applied the log before the peer may know the places."""
    let_go: bool = False
    work: "Future[list[Payload]] | None" = None
    """What the network does on this rank, once it was let go and the places are true."""
    reported: dict[int, None] = field(default_factory=dict[int, None])
    """Ranks that said that it is over."""
    astray: dict[int, None] = field(default_factory=dict[int, None])
    """Ranks that said that nobody knows whether the peer goes on."""


class HostRank(CheckedRank):
    """One rank in one incarnation, on the host device."""

    def __init__(self, *, index: int, client: Client, pool_places: int, seed: str) -> None:
        """Take over an attached client; ``seed`` is what delays are drawn from."""
        assert isinstance(client.memory, HostMemory)
        super().__init__(
            index=index,
            client=client,
            memory_bytes=client.memory.bytes,
            pool_places=pool_places,
        )
        self._bytes = client.memory.bytes
        self._random = Random(seed)
        self._threads = ThreadPoolExecutor(NETWORK_THREADS_COUNT, "network")
        self.peers: dict[int, HostPeer] = {}

    # ---- forwards -------------------------------------------------------------------------------

    def enqueue_forward(self, step: Step, plan: ForwardPlan, *, silent: bool) -> None:
        """Enqueue a forward inside its launch block; one in four takes its time."""
        step.submit(partial(self.look_up, plan))
        if not silent:
            step.reads_done()
        if self._random.randrange(4) == 0:
            step.submit(partial(time.sleep, self._random.uniform(0.0, DELAY_S_MAX)))
        step.submit(partial(self.run_forward, plan))

    # ---- peers ----------------------------------------------------------------------------------

    def expect_peers(self, plans: Sequence[PeerPlan], position: int) -> None:
        """Take note of transfers whose places are true once the log is applied to a position."""
        for plan in plans:
            self.peers[plan.number] = HostPeer(plan, position)

    def post_peers(self) -> None:
        """Let the network begin with what was let go, where this rank has come to its position."""
        for peer in self.peers.values():
            if peer.let_go and peer.work is None and self.client.applied >= peer.position:
                delay_s = self._random.uniform(0.0, DELAY_S_MAX)
                ready = self.client.stream.record()
                peer.work = self._threads.submit(self._transfer, peer.plan, ready, delay_s)

    def await_end(self, peer: HostPeer, *, compares: bool) -> None:
        """Block until the network is done with a transfer; compare what was sent."""
        assert peer.work is not None
        payloads = peer.work.result()
        if compares and not peer.plan.writes:
            for payload, words in zip(payloads, peer.plan.words, strict=True):
                self.compare_shipped(peer.plan.number, payload, words)

    def close(self) -> None:
        """End the threads, and part from the daemon."""
        self._threads.shutdown()
        self.client.close()

    def _transfer(self, plan: PeerPlan, ready: Event, delay_s: float) -> list[Payload]:
        ready.synchronize(self.client.deadline_ms)
        time.sleep(delay_s)
        payloads: list[Payload] = []
        for (starts, unit_bytes), words in zip(plan.starts, plan.words, strict=True):
            at = starts[:, None] + np.arange(unit_bytes, dtype=np.int64)
            if plan.writes:
                self._bytes[at] = words.view(np.uint8).reshape(at.shape)
            else:
                payloads.append(self._bytes[at])
        return payloads
