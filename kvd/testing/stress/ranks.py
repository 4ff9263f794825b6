"""The ranks of a stress run: real clients on modelled devices, their forwards, peers and pools.

Where things lie and what they should hold was worked out once, when a step was decided: every rank
gets the same plan of a forward, because the log gives all of them the same places. What a rank adds
is when it happens. Nothing is raised inside an action; what is wrong is kept as a finding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvd.testing.modelled.device import ModelledDevice, ModelledEvent, ModelledWork
from kvd.testing.modelled.memory import ModelledMemory
from kvd.testing.modelled.shadow import Accesses
from kvd.testing.modelled.transfers import Network, Transfer
from kvd.testing.stress.checked_rank import INT32_BYTES, CheckedRank
from kvd.testing.stress.plans import ForwardPlan, PeerPlan
from kvd_client import Client
from kvd_client.launch import Step


@dataclass(slots=True)
class Peer:
    """A transfer on one rank: waits until the rank has its places, then is the network's."""

    plan: PeerPlan
    position: int
    let_go: bool = False
    event: ModelledEvent | None = None
    transfers: list[Transfer] = field(default_factory=list[Transfer])
    posted: bool = False
    astray: bool = False
    """The rank has said that nobody knows whether the peer goes on."""

    @property
    def ended(self) -> bool:
        """Return whether the network is done with it, and let the host know."""
        return self.posted and all(transfer.ended for transfer in self.transfers)


class StressRank(CheckedRank):
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
        self.peers: dict[int, Peer] = {}
        self._let_go: dict[int, None] = {}

    def note(self, what: str) -> None:
        """Say what the rank is doing, for the names of the actions it enqueues."""
        self.device.world.note = f"rank {self.index}, {what}"

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
            return touched

        step.submit(ModelledWork(f"forward of step {plan.step}: tables", read_tables))
        if not silent:
            step.reads_done()
        step.submit(ModelledWork(f"forward of step {plan.step}: pages", run))

    # ---- peers ----------------------------------------------------------------------------------

    def expect_peers(self, plans: Sequence[PeerPlan], position: int) -> None:
        """Take note of transfers whose places are true once the log is applied to a position."""
        for plan in plans:
            self.peers[plan.number] = Peer(plan, position, let_go=plan.number in self._let_go)

    def post_peers(self) -> None:
        """Let the network have the transfers whose places this rank has confirmed."""
        for peer in self.peers.values():
            if peer.posted:
                continue
            if peer.event is None:
                if self.client.applied < peer.position:
                    continue
                event = self.client.stream.record()
                assert isinstance(event, ModelledEvent)
                peer.event = event
            if peer.event.reached:
                self._post(peer)

    def _post(self, peer: Peer) -> None:
        peer.posted = True
        plan, held = peer.plan, not peer.let_go
        self.note(f"transfer {plan.number}")
        for (starts, unit_bytes), words in zip(plan.starts, plan.words, strict=True):
            if plan.writes:
                content = words.view(np.uint8).reshape(starts.size, unit_bytes)
                transfer = self.network.receive(self.memory, starts, content, held=held)
            else:
                transfer = self.network.send(self.memory, starts, unit_bytes, held=held)
            peer.transfers.append(transfer)

    def let_go(self, number: int) -> None:
        """Let the network begin with a transfer whenever it likes, once the rank has come to it."""
        self._let_go[number] = None
        peer = self.peers.get(number)
        if peer is not None:
            peer.let_go = True
            for transfer in peer.transfers:
                transfer.let_go()

    def check_shipped(self, peer: Peer) -> None:
        """Compare what a peer read with what was there when the transfer was posted."""
        plan = peer.plan
        if plan.writes:
            return
        for transfer, words in zip(peer.transfers, plan.words, strict=True):
            self.compare_shipped(plan.number, transfer.payload, words)
