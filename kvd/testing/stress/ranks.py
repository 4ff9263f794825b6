"""The ranks of a stress run: real clients on modelled devices, their forwards, peers and pools.

Where things lie and what they should hold was worked out once, when a step was decided: every rank
gets the same plan of a forward, because the log gives all of them the same places. What a rank adds
is when it happens. Nothing is raised inside an action; what is wrong is kept as a finding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvd.testing.modelled.device import ModelledDevice, ModelledEvent, ModelledWork
from kvd.testing.modelled.memory import ModelledMemory
from kvd.testing.modelled.shadow import Accesses
from kvd.testing.modelled.transfers import Network, Transfer
from kvd.testing.stress.contents import UNKNOWN, WORD_BYTES, Indices, Tags
from kvd.testing.stress.failure import CheckName, StressFailure
from kvd.testing.stress.plans import ForwardPlan, PeerPlan
from kvd_client import Client
from kvd_client.device.host_pool import HostPool
from kvd_client.launch import Step

_INT32_BYTES = 4


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


class StressRank:
    """One rank in one incarnation."""

    def __init__(self, *, index: int, device: ModelledDevice, client: Client, pool_places: int) -> None:
        assert isinstance(client.memory, ModelledMemory)
        self.index = index
        self.device = device
        self.client = client
        self.memory = client.memory
        self.words = self.memory.bytes[: client.plan.arena_bytes].view(np.int64)
        self.cells = self.memory.bytes.view(np.int32)
        self.network = Network(device.world, f"{index}/network")
        self.peers: dict[int, Peer] = {}
        self._let_go: dict[int, None] = {}
        self.findings: list[StressFailure] = []
        self.pools: list[HostPool] = [
            client.host_pool(band.name, pool_places) for band in client.plan.bands
        ]
        self.checked_words_count = 0

    def note(self, what: str) -> None:
        """Say what the rank is doing, for the names of the actions it enqueues."""
        self.device.world.note = f"rank {self.index}, {what}"

    # ---- forwards -------------------------------------------------------------------------------

    def enqueue_forward(self, step: Step, plan: ForwardPlan, *, silent: bool) -> None:
        """Enqueue a forward inside its launch block."""
        memory = self.memory
        looked_up = Accesses(
            reads=(memory.extent(plan.table_cells * _INT32_BYTES, _INT32_BYTES),)
        )

        def read_tables() -> Accesses:
            found = self.cells[plan.table_cells]
            if not np.array_equal(found, plan.table_values):
                self._report_tables(plan, found)
            return looked_up

        touched = Accesses(
            reads=(memory.extent(plan.page_starts, plan.cell_bytes),),
            writes=(memory.extent(plan.write_starts, plan.cell_bytes),),
        )

        def run() -> Accesses:
            found = self.words[plan.page_words]
            wrong = (found != plan.page_tags) & (plan.page_tags != UNKNOWN)
            if wrong.any():
                self._report_words(plan, found, wrong)
            self.checked_words_count += found.size
            self.words[plan.write_words] = plan.write_tags
            return touched

        step.submit(ModelledWork(f"forward of step {plan.step}: tables", read_tables))
        if not silent:
            step.reads_done()
        step.submit(ModelledWork(f"forward of step {plan.step}: pages", run))

    def _report_tables(self, plan: ForwardPlan, found: Indices) -> None:
        place = int((found != plan.table_values).nonzero()[0][0])
        self._find(
            CheckName.MAPS,
            f"step {plan.step} reads {found[place]} at byte "
            f"{plan.table_cells[place] * _INT32_BYTES} of the memory; by the log "
            f"{plan.table_values[place]} stood there at its launch",
        )

    def _report_words(self, plan: ForwardPlan, found: Tags, wrong: Indices) -> None:
        place = int(wrong.nonzero()[0][0])
        is_, should = int(found[place]), int(plan.page_tags[place])
        if should < is_ <= 1 << 40 and should and is_ > plan.newest_tag:
            check = CheckName.LAUNCH_READS
        else:
            check = CheckName.PAYLOAD if should else CheckName.ZEROING
        self._find(
            check,
            f"step {plan.step} reads word {is_:#x} at byte {plan.page_words[place] * WORD_BYTES} "
            f"({plan.place_of(place)}), where its owner left {should:#x}",
        )

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
            found = np.ascontiguousarray(transfer.payload).view(np.int64)
            wrong = (found != words) & (words != UNKNOWN)
            if wrong.any():
                self._find(
                    CheckName.SHIPPED,
                    f"transfer {plan.number} shipped word {found[wrong][0]:#x} where its owner had "
                    f"{words[wrong][0]:#x}",
                )

    # ---- pools ----------------------------------------------------------------------------------

    def fill_pool(self, band_index: int, places: Indices, words: Tags) -> None:
        """Put what a load is to read into places of a host pool; nothing uses them meanwhile."""
        self.pools[band_index].units.view(np.int64)[places] = words

    def check_pool(self, copy: int, band_index: int, places: Indices, tags: Tags) -> None:
        """Compare what a backup left in the host pool with what was there at its submission."""
        found = self.pools[band_index].units.view(np.int64)[places]
        wrong = (found != tags) & (tags != UNKNOWN)
        if wrong.any():
            self._find(
                CheckName.SHIPPED,
                f"backup {copy} shipped word {found[wrong][0]:#x} of band {band_index} where its "
                f"owner had {tags[wrong][0]:#x}",
            )

    # ---- at rest --------------------------------------------------------------------------------

    def check_at_rest(self, words: Indices, tags: Tags, describe: Callable[[int], str]) -> None:
        """Compare words of the arena while nothing runs."""
        found = self.words[words]
        wrong = (found != tags) & (tags != UNKNOWN)
        if wrong.any():
            place = int(wrong.nonzero()[0][0])
            self._find(
                CheckName.PAYLOAD,
                f"at rest word {found[place]:#x} lies at byte {words[place] * WORD_BYTES} "
                f"({describe(place)}), where its owner left {tags[place]:#x}",
            )

    def _find(self, check: CheckName, message: str) -> None:
        self.findings.append(StressFailure(check, f"rank {self.index}: {message}"))
