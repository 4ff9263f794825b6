"""Loads, backups and transfers: which uses they open, and when each is over.

States and what they pin are those of semantics section 9; the uses are opened in the ledger of
`kvd.testing.stress.open_accesses`.
"""

from collections.abc import Sequence

from kvd.alloc.signals import copy_signal, transfer_signal
from kvd.alloc.uses import UseKind
from kvd.testing.stress.broken import broken, require
from kvd.testing.stress.open_accesses import NETWORK
from kvd.testing.stress.request_books import HeldValue, RequestBooks
from kvd.testing.stress.told import Told
from kvd_proto.operations import Released
from kvd_proto.outcomes import CopyStream, Resolved

NameLists = Sequence[Sequence[int]]
"""Names per band, chain order."""


class OpenLoad:
    """A load that is not over."""

    def __init__(self, value: int, reserved: dict[int, list[int]]) -> None:
        self.value = value
        self.reserved = reserved
        """Per band: its units, in the order of taking."""
        self.named: dict[int, list[int]] = {}
        """Per band: the pages that its first units were bound to, in order."""
        self.submitted = False

    def nameless(self, band: int) -> list[int]:
        """Return the units of a band that have no name yet."""
        return self.reserved.get(band, [])[len(self.named.get(band, ())) :]


class OpenTransfer:
    """A transfer that is not over."""

    def __init__(self, names: list[list[int]], state: str) -> None:
        self.names = names
        self.state = state


class UseBooks:
    """The copies and transfers of one stage that are not over."""

    def __init__(self, books: RequestBooks) -> None:
        self.books = books
        self.units = books.units
        self.accesses = books.units.accesses
        self.loads: dict[int, OpenLoad] = {}
        self.backups: dict[int, list[list[int]]] = {}
        self.transfers: dict[int, OpenTransfer] = {}
        self.highest_copy = 0
        self.highest_transfer = 0

    # ---- loads ----------------------------------------------------------------------------------

    def reserve(self, number: int, value: int, units: dict[int, list[int]]) -> None:
        """Take in the units that a load reserved, as kvd chose them."""
        self._use_copy(number)
        self.loads[number] = OpenLoad(value, {band: list(it) for band, it in units.items()})
        for band, its in units.items():
            self.units.reserve(band, its, number)
            self.accesses.open(
                UseKind.LOAD_RESERVATION, copy_signal(number), self.units.grains(band, its)
            )

    def name(self, number: int, band: int, pages: list[int], told: Told) -> None:
        """Bind a load's next units of a band to pages."""
        load = self._unsubmitted(number)
        units = load.nameless(band)[: len(pages)]
        told_names = [(it.names, it.units) for it in told.named if it.band == band]
        require(
            told_names == [(pages, units)],
            "reservations",
            f"load {number} names units {units} for pages {pages}, told is {told_names}",
        )
        value = self._value(load.value)
        for page in pages:
            if page not in value.pages or page in value.bound[band]:
                broken("holdings", f"load {number} named page {page}, no missing one of its value")
        self.units.name_reserved(band, pages, units)
        load.named.setdefault(band, []).extend(pages)
        kept = {*value.bound[band], *pages}
        value.bound[band] = [page for page in value.pages if page in kept]
        if not load.nameless(band):
            self._unpin(number, band, load)

    def submit(self, number: int, told: Told) -> None:
        """Let a load write its units, wherever they lie now."""
        load = self._unsubmitted(number)
        nameless = [band for band in load.reserved if load.nameless(band)]
        require(not nameless, "reservations", f"load {number} was submitted without {nameless}")
        load.submitted = True
        self._copy(number, CopyStream.LOAD, load.named, told)
        for band, pages in load.named.items():
            self.accesses.open(
                UseKind.COPY_WRITE, copy_signal(number), self.units.grains_of_names(band, pages)
            )

    def cancel_load(self, number: int, told: Told) -> tuple[int, ...]:
        """Give up a load; return how many names per band are no more."""
        load = self._unsubmitted(number)
        del self.loads[number]
        value = self._value(load.value)
        self.accesses.close(UseKind.LOAD_RESERVATION, copy_signal(number))
        counts = [0] * self.books.band_count
        for band in load.reserved:
            self.units.give_up(band, number)
            pages = load.named.get(band, [])
            require(
                told.unnamed_of(band) == sorted(pages),
                "outcome",
                f"load {number} gives up pages {pages}, unnamed are {told.unnamed_of(band)}",
            )
            value.bound[band] = [page for page in value.bound[band] if page not in pages]
            self.units.free_names(band, pages)
            counts[band] = len(pages)
        return tuple(counts)

    # ---- backups --------------------------------------------------------------------------------

    def back_up(self, number: int, names: NameLists, told: Told) -> None:
        """Let a backup read units where they lie now; waits were taken in before."""
        self._use_copy(number)
        parts = {band: list(it) for band, it in enumerate(names) if it}
        self._copy(number, CopyStream.BACKUP, parts, told)
        self.backups[number] = [list(it) for it in names]
        for band, its in parts.items():
            grains = self.units.grains_of_names(band, its)
            what = f"backup {number} reads band {self.units.name(band)}"
            barred = (UseKind.LOAD_RESERVATION, UseKind.RECEIVE_HOLD, UseKind.NETWORK_RECEIVE)
            for kind, signal in self.accesses.on(grains, barred):
                broken("clearance", f"{what} that {signal.kind} {signal.number} has ({kind})")
            for _, signal in self.accesses.on(grains, [UseKind.COPY_WRITE]):
                if signal not in self.accesses.waited:
                    broken("clearance", f"{what} that copy {signal.number} fills, without a wait")
            self._require_loaded(band, its, what)
            self._require_cleared(band, its, what)
            self.accesses.open(UseKind.COPY_READ, copy_signal(number), grains)

    def _copy(
        self, number: int, stream: CopyStream, parts: dict[int, list[int]], told: Told
    ) -> None:
        expected = [
            (number, stream, band, [self.units.place_of[band].get(name) for name in names])
            for band, names in sorted(parts.items())
        ]
        copies = sorted(told.copies, key=lambda it: it.band)
        require(
            [(it.copy, it.stream, it.band, it.units) for it in copies] == expected,
            "outcome",
            f"copies {copies} of {expected}",
        )

    # ---- transfers ------------------------------------------------------------------------------

    def hold(self, number: int, names: NameLists) -> None:
        """Take in that a peer is to write units."""
        self._use_transfer(number, names, "held")
        for band, its in enumerate(names):
            what = f"transfer {number} holds band {self.units.name(band)}"
            grains = self.units.grains_of_names(band, its)
            barred = (UseKind.LOAD_RESERVATION, UseKind.RECEIVE_HOLD, UseKind.NETWORK_RECEIVE)
            for kind, signal in self.accesses.on(grains, barred):
                broken("clearance", f"{what} that {signal.kind} {signal.number} has ({kind})")
            self._require_loaded(band, its, what)
            self.accesses.open(UseKind.RECEIVE_HOLD, transfer_signal(number), grains)

    def in_the_way(self, number: int) -> tuple[int, ...]:
        """Return the other transfers that touch what a held one is to fill."""
        signal = transfer_signal(number)
        found: set[int] = set()
        for band, names in enumerate(self._held(number).names):
            grains = self.units.grains_of_names(band, names)
            found |= {it.number for _, it in self.accesses.on(grains, NETWORK) if it != signal}
        return tuple(sorted(found))

    def publish(self, number: int, result: Resolved, told: Told) -> None:
        """Let a peer write what a transfer holds; waits were taken in before."""
        transfer = self._held(number)
        signal = transfer_signal(number)
        others = self.in_the_way(number)
        require(not others, "clearance", f"transfer {number} was published over {others}")
        self._resolved(number, transfer.names, result, told)
        self._zeroed(transfer.names, told)
        transfer.state = "published"
        self.accesses.close(UseKind.RECEIVE_HOLD, signal)
        for band, names in enumerate(transfer.names):
            grains = self.units.grains_of_names(band, names)
            what = f"transfer {number} was published into band {self.units.name(band)}"
            self.accesses.require_clear_write(grains, what)
            self.accesses.open(UseKind.NETWORK_RECEIVE, signal, grains)

    def post(self, number: int, names: NameLists, result: Resolved, told: Told) -> None:
        """Let a peer read units."""
        self._use_transfer(number, names, "posted")
        self._resolved(number, names, result, told)
        writers = (UseKind.LOAD_RESERVATION, UseKind.RECEIVE_HOLD, UseKind.NETWORK_RECEIVE)
        for band, its in enumerate(names):
            what = f"transfer {number} sends from band {self.units.name(band)}"
            grains = self.units.grains_of_names(band, its)
            for kind, signal in self.accesses.on(grains, writers):
                broken("clearance", f"{what} what {signal.kind} {signal.number} writes ({kind})")
            for copy in self.accesses.filling(grains):
                broken("clearance", f"{what} what load {copy} is still to deliver")
            for step in self.accesses.writing_steps(grains) if grains else ():
                broken("clearance", f"{what} what step {step} may write")
            self._require_loaded(band, its, what)
            self._require_cleared(band, its, what, through_step=self.accesses.retired)
            self.accesses.open(UseKind.NETWORK_SEND, transfer_signal(number), grains)

    def cancel_hold(self, number: int) -> None:
        """Give up a held transfer."""
        self._held(number)
        del self.transfers[number]
        self.accesses.close(UseKind.RECEIVE_HOLD, transfer_signal(number))

    def _resolved(self, number: int, names: NameLists, result: Resolved, told: Told) -> None:
        for band, its in enumerate(names):
            places = [self.units.place_of[band].get(name) for name in its]
            require(
                told.column(result.physical[band]) == places,
                "maps",
                f"transfer {number} was told that pages {list(its)} of band {band} lie at "
                f"{told.column(result.physical[band])}; they lie at {places}",
            )

    def _zeroed(self, names: NameLists, told: Told) -> None:
        """Check that slots are zeroed before a peer has them: the next launch would do it later."""
        state = self.books.state
        expected: list[tuple[int, list[int | None]]] = []
        if state is not None and names[state]:
            places = [self.units.place_of[state].get(name) for name in names[state]]
            expected = [(state, places)]
        require(
            told.zeroed == expected and not (told.moves or told.named or told.unnamed),
            "outcome",
            f"slots {expected} are published, zeroed are {told.zeroed}",
        )
        for name in names[state] if state is not None else ():
            self.books.uncleared.pop(name, None)

    # ---- ends -----------------------------------------------------------------------------------

    def release(self, entry: Released) -> None:
        """Take in what is over on every rank, or in quarantine."""
        for number in entry.copies:
            load = self.loads.pop(number, None)
            if load is None and self.backups.pop(number, None) is None:
                broken("reservations", f"copy {number} ended twice")
            require(
                load is None or load.submitted,
                "reservations",
                f"load {number} ended and was never submitted",
            )
            self.units.release(copy_signal(number))
        for number in entry.transfers:
            transfer = self.transfers.pop(number, None)
            require(
                transfer is not None and transfer.state != "held",
                "reservations",
                f"transfer {number} ended, which is {transfer}",
            )
            self.units.release(transfer_signal(number))
        for number in entry.quarantined:
            require(
                number in self.transfers, "reservations", f"transfer {number} is lost and not open"
            )
            if any(key in self.accesses.uses for key in self._network_keys(number)):
                self.accesses.astray.add(transfer_signal(number))

    @property
    def awaited(self) -> tuple[int, ...]:
        """Return the transfers that touch anything and whose end can be waited for."""
        return tuple(
            sorted([number for number in self.transfers if self.accesses.is_known(number)])
        )

    # ---- inside ---------------------------------------------------------------------------------

    def _network_keys(self, number: int) -> list[tuple[UseKind, object]]:
        return [(kind, transfer_signal(number)) for kind in NETWORK]

    def _unpin(self, number: int, band: int, load: OpenLoad) -> None:
        """Let a load's units of one band move, once the last of them is named."""
        key = (UseKind.LOAD_RESERVATION, copy_signal(number))
        self.accesses.uses[key] -= self.units.grains(band, load.reserved[band])
        if not self.accesses.uses[key]:
            del self.accesses.uses[key]

    def _require_loaded(self, band: int, names: Sequence[int], what: str) -> None:
        for number, load in self.loads.items():
            if not load.submitted and set(names) & set(load.named.get(band, ())):
                broken("clearance", f"{what} that load {number} is to fill")

    def _require_cleared(
        self, band: int, names: Sequence[int], what: str, *, through_step: int | None = None
    ) -> None:
        """Raise StressFailure for a slot that no launch has cleared, or none of some steps."""
        if band != self.books.state:
            return
        for name in names:
            step = self.books.clearing_step.get(name, 0)
            if name in self.books.uncleared:
                broken("clearance", f"{what} while slot {name} is still to be cleared")
            if through_step is not None and step > through_step:
                broken("clearance", f"{what} while step {step} clears slot {name}")

    def _unsubmitted(self, number: int) -> OpenLoad:
        load = self.loads.get(number)
        if load is None or load.submitted:
            broken("reservations", f"load {number} is {load}, which was to be reserved")
        return load

    def _held(self, number: int) -> OpenTransfer:
        transfer = self.transfers.get(number)
        if transfer is None or transfer.state != "held":
            broken("reservations", f"transfer {number} is {transfer}, which was to be held")
        return transfer

    def _value(self, number: int) -> HeldValue:
        value = self.books.values.get(number)
        if value is None:
            broken("holdings", f"value {number} is not there")
        return value

    def _use_copy(self, number: int) -> None:
        require(number > self.highest_copy, "reservations", f"copy {number} was there before")
        self.highest_copy = number

    def _use_transfer(self, number: int, names: NameLists, state: str) -> None:
        require(
            number > self.highest_transfer, "reservations", f"transfer {number} was there before"
        )
        for band, its in enumerate(names):
            unbound = [name for name in its if name not in self.units.place_of[band]]
            require(not unbound, "holdings", f"transfer {number} names {unbound}, bound to nothing")
        self.highest_transfer = number
        self.transfers[number] = OpenTransfer([list(it) for it in names], state)
