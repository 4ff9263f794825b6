"""The ranks of a stress run: real clients on modelled devices, their forwards, peers and pools.

Where things lie and what they should hold was worked out once, when a step was decided: every rank
gets the same plan of a forward, because the log gives all of them the same places. What a rank adds
is when it happens. Nothing is raised inside an action; what is wrong is kept as a finding.
"""

from typing import Final

import numpy as np

from kvd.testing.modelled.clock import STREAMS_COUNT_MAX
from kvd.testing.modelled.device import ModelledDevice, ModelledWork
from kvd.testing.modelled.memory import ModelledMemory
from kvd.testing.modelled.shadow import Accesses
from kvd.testing.modelled.transfers import Network, Transfer
from kvd.testing.stress.checked_rank import INT32_BYTES
from kvd.testing.stress.plans import ForwardPlan, PeerPlan
from kvd.testing.stress.played_rank import PlayedPeer, PlayedRank
from kvd_client import Client
from kvd_client.device.port import Stream
from kvd_client.launch import Step

OWN_STREAMS_COUNT: Final = 5
"""Streams of a rank that are not its network's: allocator, load, backup, and two for forwards."""


def network_stream_count_max(ranks_count: int) -> int:
    """Return how many streams each rank's network may use at a time; the host is a stream too."""
    return (STREAMS_COUNT_MAX - 1) // ranks_count - OWN_STREAMS_COUNT


class Peer(PlayedPeer):
    """A transfer on one rank, played by the modelled network."""

    def __init__(self, plan: PeerPlan, position: int) -> None:
        """Begin with nothing known but what the log says."""
        super().__init__(plan, position)
        self.transfers: list[Transfer] = []

    @property
    def ended(self) -> bool:
        """Return whether the network is done with it, and let the host know."""
        return self.posted and all(transfer.ended for transfer in self.transfers)


class StressRank(PlayedRank[Peer]):
    """One rank in one incarnation, on a modelled device."""

    def __init__(
        self, *, index: int, device: ModelledDevice, client: Client, pool_places: int
    ) -> None:
        assert isinstance(client.memory, ModelledMemory)
        super().__init__(
            index=index,
            client=client,
            memory_bytes=client.memory.bytes,
            pool_places=pool_places,
        )
        self.device = device
        self.memory = client.memory
        self.network = Network(device.world, f"{index}/network")
        self.second_stream: Stream | None = None

    def stream_of(self, step: int) -> Stream | None:
        """Let forwards take turns on two streams, where there are two."""
        return self.second_stream if step % 2 == 0 else None

    def note(self, what: str) -> None:
        """Say what the rank is doing, for the names of the actions it enqueues."""
        self.device.world.note = f"rank {self.index}, {what}"

    def kill(self) -> None:
        """Let the rank die where it is; nothing that is enqueued runs any more."""
        self.device.kill()

    # ---- forwards -------------------------------------------------------------------------------

    def enqueue_forward(self, step: Step, plan: ForwardPlan, *, silent: bool) -> None:
        """Enqueue a forward inside its launch block."""
        memory = self.memory
        looked_up = Accesses(reads=(memory.extent(plan.table_cells * INT32_BYTES, INT32_BYTES),))

        def read_tables() -> Accesses:
            self.look_up(plan)
            return looked_up

        touched = Accesses(
            reads=(memory.extent(plan.page_starts, plan.cell_bytes),),
            writes=(memory.extent(plan.write_starts, plan.cell_bytes),),
        )

        def run() -> Accesses:
            self.run_forward(plan)
            if plan.step not in self.left_steps:
                return touched
            # Whatever it declared, nothing is known of a step that was left by an exception.
            self.look_up(plan)
            return Accesses((*touched.reads, *looked_up.reads), touched.writes)

        step.submit(ModelledWork(f"forward of step {plan.step}: tables", read_tables))
        if not silent:
            step.reads_done()
        step.submit(ModelledWork(f"forward of step {plan.step}: pages", run))

    # ---- peers ----------------------------------------------------------------------------------

    def new_peer(self, plan: PeerPlan, position: int) -> Peer:
        """Return a transfer that nothing is known of yet."""
        return Peer(plan, position)

    def post(self, peer: Peer) -> None:
        """Tell the network the places of a transfer."""
        plan, held = peer.plan, not peer.let_go
        for (starts, unit_bytes), words in zip(plan.starts, plan.words, strict=True):
            if plan.writes:
                content = words.view(np.uint8).reshape(starts.size, unit_bytes)
                transfer = self.network.receive(self.memory, starts, content, held=held)
            else:
                transfer = self.network.send(self.memory, starts, unit_bytes, held=held)
            peer.transfers.append(transfer)

    def release(self, peer: Peer) -> None:
        """Let the network begin with a transfer that it was told of."""
        for transfer in peer.transfers:
            transfer.let_go()

    def check_shipped(self, peer: Peer) -> None:
        """Compare what a peer read with what was there when the transfer was posted."""
        plan = peer.plan
        if plan.writes:
            return
        for transfer, words in zip(peer.transfers, plan.words, strict=True):
            self.compare_shipped(plan.number, transfer.payload, words)
