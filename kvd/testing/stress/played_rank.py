"""A rank that one process plays beside others: its peers wait for its places and are let go.

What the network does with a transfer is up to the kind of rank; when it may begin is the same.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kvd.testing.stress.checked_rank import CheckedRank
from kvd.testing.stress.plans import PeerPlan
from kvd_client import Client

if TYPE_CHECKING:
    from kvd_client.device.port import Event


class PlayedPeer:
    """A transfer on one rank: waits until the rank has its places, then is the network's."""

    def __init__(self, plan: PeerPlan, position: int) -> None:
        """Begin with nothing known but what the log says."""
        self.plan = plan
        self.position = position
        self.let_go = False
        self.event: Event | None = None
        """Behind everything up to the position, on this rank."""
        self.posted = False
        self.astray = False
        """Whether the rank has said that nobody knows whether the peer goes on."""

    @property
    def ended(self) -> bool:
        """Return whether the network is done with it, and let the host know."""
        raise NotImplementedError


PeerT = TypeVar("PeerT", bound=PlayedPeer)


class PlayedRank(CheckedRank, Generic[PeerT]):
    """One rank in one incarnation, in the process of whoever plays the program."""

    def __init__(
        self,
        *,
        index: int,
        client: Client,
        memory_bytes: npt.NDArray[np.uint8],
        pool_places: int,
    ) -> None:
        """Look at a rank's memory through ``memory_bytes``, all of it."""
        super().__init__(
            index=index, client=client, memory_bytes=memory_bytes, pool_places=pool_places
        )
        self.peers: dict[int, PeerT] = {}
        self._let_go: dict[int, None] = {}

    @abstractmethod
    def kill(self) -> None:
        """Let the rank die where it is."""

    @abstractmethod
    def new_peer(self, plan: PeerPlan, position: int) -> PeerT:
        """Return a transfer that nothing is known of yet."""

    @abstractmethod
    def post(self, peer: PeerT) -> None:
        """Tell the network the places of a transfer."""

    @abstractmethod
    def release(self, peer: PeerT) -> None:
        """Let the network begin with a transfer that it was told of."""

    @abstractmethod
    def check_shipped(self, peer: PeerT) -> None:
        """Compare what a peer read with what was there when the transfer was posted."""

    def expect_peers(self, plans: Sequence[PeerPlan], position: int) -> None:
        """Take note of transfers whose places are true once the log is applied to a position."""
        for plan in plans:
            peer = self.peers[plan.number] = self.new_peer(plan, position)
            peer.let_go = plan.number in self._let_go

    def post_peers(self) -> None:
        """Let the network have the transfers whose places this rank has confirmed."""
        for peer in self.peers.values():
            if peer.posted:
                continue
            if peer.event is None:
                if self.client.applied < peer.position:
                    continue
                peer.event = self.client.stream.record()
            if peer.event.reached:
                peer.posted = True
                self.note(f"transfer {peer.plan.number}")
                self.post(peer)

    def let_go(self, number: int) -> None:
        """Let the network begin with a transfer whenever it likes, once the rank has come to it."""
        self._let_go[number] = None
        peer = self.peers.get(number)
        if peer is not None:
            peer.let_go = True
            if peer.posted:
                self.release(peer)
