"""Network transfers: what a peer reads, what it writes or will write, and what nobody knows.

A send is posted and over. A receive is held until its places are told the peer, published, and
over. A transfer that failed while its peer may go on is in quarantine: what it touches stays where
it is and is not reused until somebody proves that the peer let go.

Invariants:
    transfer.hold_matches: a held transfer pins the units of its ids wherever they lie, one that is
        not held pins none; only those a peer knows of are in quarantine; numbers were used
"""

from collections.abc import Container, Sequence
from enum import StrEnum

import numpy as np

from kvd.alloc.band import Units
from kvd.alloc.chain import ChainAllocator
from kvd.alloc.clearance import Consumer, Reader
from kvd.alloc.copies import Copies
from kvd.alloc.numbers import Numbers
from kvd.alloc.signals import Signal, SignalKind, transfer_signal
from kvd.alloc.uses import NETWORK, UseKind
from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode

RECEIVES = (UseKind.RECEIVE_HOLD, UseKind.NETWORK_RECEIVE)
"""Uses whose units a peer writes or will write: whoever holds them may not end."""


class TransferState(StrEnum):
    """Where a transfer is."""

    HELD = "held"
    PUBLISHED = "published"
    POSTED = "posted"


class Transfer:
    """A transfer that is not over."""

    def __init__(self, state: TransferState, virtual: list[Units]) -> None:
        self.state = state
        self.virtual = virtual
        """Ids per band as they were named; under a send, or in quarantine, their owner may end."""
        self.quarantined = False


class Transfers:
    """The transfers of one chain that are not over."""

    def __init__(self, chain: ChainAllocator, copies: Copies) -> None:
        self.chain = chain
        self.numbers = Numbers("transfer")
        self.open: dict[int, Transfer] = {}
        self._copies = copies

    @property
    def awaited(self) -> tuple[int, ...]:
        """Return the transfers whose end a caller can wait for and that touch anything."""
        signals: dict[Signal, None] = {}
        for band in self.chain.bands:
            signals.update(dict.fromkeys(band.usage.awaited_transfers()))
        signals.update(dict.fromkeys(self.chain.order.fences.awaited_transfers()))
        return tuple(sorted([signal.number for signal in signals]))

    # ---- receives -------------------------------------------------------------------------------

    def hold(self, number: int, virtual: list[Units]) -> None:
        """Announce a transfer into units.

        Raises OperationError, with nothing changed, for a number that was used, ids that are not
        bound, and units that another receive or a load that is not submitted is to fill.
        """
        self.numbers.check_new(number)
        what = f"transfer {number}"
        bands = self.chain.bands
        units = [band.resolve(ids) for band, ids in zip(bands, virtual, strict=True)]
        for index, places in enumerate(units):
            self._copies.check_loaded(index, virtual[index], what=what)
            self._check_free(index, places, (*RECEIVES, UseKind.LOAD_RESERVATION), what=what)
        self.numbers.use(number)
        self.open[number] = Transfer(TransferState.HELD, virtual)
        for band, places in zip(bands, units, strict=True):
            if places.size:
                band.usage.open(UseKind.RECEIVE_HOLD, transfer_signal(number), places)

    def publish(self, number: int) -> list[Units] | tuple[int, ...]:
        """Let a peer write what a transfer holds; return where that lies, per band.

        Where other transfers touch it, nothing is changed and their numbers come back: they have
        to end first. Raises OperationError, with nothing changed, for a transfer that is not held,
        and while a step in flight is known to write some of it.
        """
        transfer = self._held(number)
        order, signal = self.chain.order, transfer_signal(number)
        units = [
            band.physical(ids) for band, ids in zip(self.chain.bands, transfer.virtual, strict=True)
        ]
        others: dict[int, None] = {}
        for index, (band, places) in enumerate(zip(self.chain.bands, units, strict=True)):
            step = band.usage.writing_step(places)
            if step:
                raise OperationError(
                    f"transfer {number} cannot be published: step {step}, which is in flight, "
                    f"writes its units of band {self.chain.geometry.bands[index].name}",
                    code=ErrorCode.IN_USE,
                )
            others.update(dict.fromkeys(it.number for it in band.usage.transfers(places)))
        if others:
            return tuple(sorted(others))
        for band, places in zip(self.chain.bands, units, strict=True):
            if places.size:
                order.wait(
                    band.usage.hazards(
                        places,
                        Consumer.PEER_WRITE,
                        order.clearance,
                        own=signal,
                        waited=order.waited,
                    )
                )
                band.usage.close(UseKind.RECEIVE_HOLD, signal)
                band.usage.open(UseKind.NETWORK_RECEIVE, signal, places)
        transfer.state = TransferState.PUBLISHED
        return units

    def cancel(self, number: int) -> None:
        """Give up a held transfer; raises OperationError for one that is not held."""
        transfer = self._held(number)
        del self.open[number]
        for band, ids in zip(self.chain.bands, transfer.virtual, strict=True):
            if ids.size:
                band.usage.close(UseKind.RECEIVE_HOLD, transfer_signal(number))

    # ---- sends ----------------------------------------------------------------------------------

    def post(self, number: int, virtual: list[Units]) -> list[Units]:
        """Let a peer read units; return where they lie, per band.

        Raises OperationError, with nothing changed, for a number that was used, ids that are not
        bound, and units that a step in flight, a load or a peer may still write.
        """
        self.numbers.check_new(number)
        what = f"transfer {number}"
        units = self._copies.readable(virtual, Reader.NETWORK_SEND, what=what)
        self.numbers.use(number)
        self.open[number] = Transfer(TransferState.POSTED, virtual)
        for band, places in zip(self.chain.bands, units, strict=True):
            if places.size:
                band.usage.open(UseKind.NETWORK_SEND, transfer_signal(number), places)
        return units

    # ---- ends -----------------------------------------------------------------------------------

    def is_running(self, number: int) -> bool:
        """Return whether a peer knows of a transfer that is not over."""
        transfer = self.open.get(number)
        return transfer is not None and transfer.state is not TransferState.HELD

    def was_over(self, number: int) -> bool:
        """Return whether nothing is open under a number that was passed, so that it is over."""
        return 0 < number <= self.numbers.highest and number not in self.open

    def end(self, number: int) -> None:
        """Take in that a transfer is over on every rank."""
        del self.open[number]
        signal = transfer_signal(number)
        for band in self.chain.bands:
            band.release_signal(signal)
        self.chain.order.fences.release(signal)

    def quarantine(self, number: int) -> None:
        """Take in that a transfer failed while its peer may go on."""
        self.open[number].quarantined = True
        signal = transfer_signal(number)
        for band in self.chain.bands:
            band.usage.quarantine(signal)
        self.chain.order.fences.quarantine(signal)

    def check(self) -> None:
        """Check what held transfers pin: transfer.hold_matches."""
        for number, transfer in self.open.items():
            is_held = transfer.state is TransferState.HELD
            matches = 0 < number <= self.numbers.highest and not (is_held and transfer.quarantined)
            for band, ids in zip(self.chain.bands, transfer.virtual, strict=True):
                pinned = band.usage.units_of(UseKind.RECEIVE_HOLD, transfer_signal(number))
                expected = np.sort(band.physical(ids)) if is_held else pinned[:0]
                matches = matches and np.array_equal(pinned, expected)
            if not matches:
                self.chain.monitor.fail(
                    "transfer.hold_matches",
                    f"transfer {number}, {transfer.state.value}, does not pin what it is into",
                )

    # ---- whoever holds the units ----------------------------------------------------------------

    def check_may_end(self, virtual: Sequence[Units], *, what: str) -> None:
        """Raise OperationError if ids per band cannot be freed: a peer is to write their units.

        One whose peer may go on for ever does not keep them: the units stay behind alone.
        """
        for index, ids in enumerate(virtual):
            places = self.chain.bands[index].physical(ids)
            self._check_free(index, places, RECEIVES, what=what, lost=False)

    def check_untouched(self, virtual: Sequence[Units], *, what: str) -> None:
        """Raise OperationError if ids per band would give nothing back at once: a peer has them."""
        for index, ids in enumerate(virtual):
            places = self.chain.bands[index].physical(ids)
            self._check_free(index, places, (*NETWORK, UseKind.RECEIVE_HOLD), what=what)

    def _check_free(
        self, index: int, places: Units, kinds: Container[UseKind], *, what: str, lost: bool = True
    ) -> None:
        band = self.chain.bands[index]
        use = band.usage.first_use(places, kinds, lost=lost) if places.size else None
        if use is not None:
            kind, signal = use
            whose = "load" if signal.kind is SignalKind.COPY else "transfer"
            raise OperationError(
                f"{what} cannot have units of band {band.geometry.name} that {whose} "
                f"{signal.number} has ({kind}); its end comes first",
                code=ErrorCode.IN_USE,
            )

    def _held(self, number: int) -> Transfer:
        transfer = self.open.get(number)
        if transfer is None or transfer.state is not TransferState.HELD:
            state = "not open" if transfer is None else transfer.state.value
            raise self.numbers.unknown(
                number, f"is {state}; only a held one can be published or given up"
            )
        return transfer
