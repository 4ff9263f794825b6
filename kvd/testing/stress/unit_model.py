"""Units of every band, by who has them: the reference for places, names, frees and moves.

A unit is live under a name, reserved for a load, pending under a step, vacated under a transfer, or
free. Which free unit kvd takes, and how far a band's span reaches, is its own choice; whether it
may is asked here, byte by byte. The rules are those of semantics sections 4, 7 and 8.
"""

import math
from collections.abc import Iterable, Sequence

from kvd.alloc.signals import Signal
from kvd.alloc.uses import UseKind
from kvd.price.geometry import ChainGeometry
from kvd.testing.stress.broken import broken, require
from kvd.testing.stress.open_accesses import NETWORK, Grains, OpenAccesses
from kvd.testing.stress.told import ToldMove

Holder = tuple[int, int]
"""A band, and a unit of it."""

STAYING = (UseKind.LOAD_RESERVATION, *NETWORK)
"""What keeps a unit where it is: a queued load's number, or a peer that was told the place."""


class UnitModel:
    """The units of one arena."""

    def __init__(self, geometry: ChainGeometry) -> None:
        self.geometry = geometry
        self.accesses = OpenAccesses()
        bands = geometry.bands
        self.grain_bytes = math.gcd(*[band.unit_bytes for band in bands])
        self._unit_grains = [band.unit_bytes // self.grain_bytes for band in bands]
        self._sink_grain = -(-geometry.sink_bytes // self.grain_bytes)
        self.place_of: list[dict[int, int]] = [{} for _ in bands]
        """Unit of every bound name."""
        self.reserved: list[dict[int, int]] = [{} for _ in bands]
        """Load of every unit that was taken for one and has no name."""
        self.pending: list[dict[int, int]] = [{} for _ in bands]
        """Newest step in flight when the unit was freed."""
        self.vacated: list[set[int]] = [set() for _ in bands]
        """Units that nobody owns while a transfer may touch them."""
        self._holder_of: dict[int, Holder] = {}
        """Who has each grain."""

    # ---- bytes ----------------------------------------------------------------------------------

    def grains(self, band: int, units: Iterable[int]) -> Grains:
        """Return the grains of units."""
        size = self._unit_grains[band]
        return {grain for unit in units for grain in range(unit * size, (unit + 1) * size)}

    def grains_of_names(self, band: int, names: Iterable[int]) -> Grains:
        """Return the grains of names that are bound; others have none."""
        place_of = self.place_of[band]
        return self.grains(band, [place_of[name] for name in names if name in place_of])

    def touched(self, band: int, units: Iterable[int], grains: Grains) -> list[int]:
        """Return those of some units that share grains with a set."""
        if not grains:
            return []
        size = self._unit_grains[band]
        return [
            unit for unit in units if not grains.isdisjoint(range(unit * size, (unit + 1) * size))
        ]

    def name(self, band: int) -> str:
        """Return a band's name."""
        return self.geometry.bands[band].name

    # ---- taking ---------------------------------------------------------------------------------

    def hand_out(self, band: int, names: Sequence[int], units: Sequence[int]) -> None:
        """Bind fresh units to names that are free."""
        require(len(names) == len(units), "outcome", f"{len(names)} names for {len(units)} units")
        for name, unit in zip(names, units, strict=True):
            what = f"band {self.name(band)} handed out unit {unit}"
            self._acquire(band, unit, what)
            self._name(band, name, unit)

    def reserve(self, band: int, units: Sequence[int], load: int) -> None:
        """Take fresh units for a load that names them later."""
        for unit in units:
            self._acquire(band, unit, f"band {self.name(band)} reserved unit {unit}")
            self.reserved[band][unit] = load

    def name_reserved(self, band: int, names: Sequence[int], units: Sequence[int]) -> None:
        """Bind reserved units to names."""
        for name, unit in zip(names, units, strict=True):
            require(
                self.reserved[band].pop(unit, 0),
                "reservations",
                f"unit {unit} of band {self.name(band)} was named and is not reserved",
            )
            self._name(band, name, unit)

    def move(self, moved: ToldMove, *, unasked: bool) -> None:
        """Take in that units moved, all at once; ``unasked`` moves wait for nothing."""
        band, names, sources, destinations = moved
        label = f"band {self.name(band)} moved"
        require(
            len(names) == len(sources) == len(destinations) > 0,
            "outcome",
            f"{label} {len(sources)} units of {len(names)} names to {len(destinations)} places",
        )
        place_of = self.place_of[band]
        for name, source in zip(names, sources, strict=True):
            require(
                place_of.get(name) == source,
                "maps",
                f"{label} name {name} from unit {source}, it lies in {place_of.get(name)}",
            )
            self._require_movable(band, source, f"{label} unit {source}", unasked=unasked)
        for destination in destinations:
            self._acquire(band, destination, f"{label} something to unit {destination}")
        for name, source, destination in zip(names, sources, destinations, strict=True):
            self._carry_holds(self.grains(band, [source]), self.grains(band, [destination]))
            self._forget(band, source)
            place_of[name] = destination
        self.accesses.open_vacated(self.grains(band, sources))

    # ---- freeing --------------------------------------------------------------------------------

    def free_names(self, band: int, names: Iterable[int]) -> None:
        """Unbind names; their units pend under the newest step in flight, or are let go."""
        for name in names:
            unit = self.place_of[band].pop(name, None)
            if unit is None:
                broken("holdings", f"name {name} of band {self.name(band)} is freed and not bound")
            self._disown(band, unit)

    def give_up(self, band: int, load: int) -> None:
        """Free the units of a load that have no name."""
        for unit in [unit for unit, owner in self.reserved[band].items() if owner == load]:
            del self.reserved[band][unit]
            self._disown(band, unit)

    def process(self, step: int) -> bool:
        """Take in that a step was processed; return whether it was not retired before."""
        is_news = self.accesses.process(step)
        for band, pending in enumerate(self.pending):
            for unit in [unit for unit, key in pending.items() if key <= step]:
                del pending[unit]
                self._let_go(band, unit)
        return is_news

    def release(self, signal: Signal) -> None:
        """Take in that a copy or a transfer is over; what it alone held back is free."""
        self.accesses.release(signal)
        network = self.accesses.network()
        for band, vacated in enumerate(self.vacated):
            for unit in vacated - set(self.touched(band, vacated, network)):
                vacated.discard(unit)
                self._forget(band, unit)

    def settle(self, band: int, unit: int) -> None:
        """Take in that a pending unit came back before its step was processed."""
        key = self.pending[band].pop(unit)
        require(
            key <= self.accesses.retired,
            "pending",
            f"unit {unit} of band {self.name(band)} came back, but step {key}, under which it "
            f"was freed, is not over for the allocator",
        )
        self._let_go(band, unit)

    def leave(self, band: int, unit: int) -> None:
        """Take in that a vacated unit is outside its band's span now; its bytes stay used."""
        self.vacated[band].discard(unit)
        self._forget(band, unit)

    # ---- inside ---------------------------------------------------------------------------------

    def _acquire(self, band: int, unit: int, what: str) -> None:
        """Let a band have a unit that is free, whose bytes are free, and that may be written."""
        geometry = self.geometry.bands[band]
        require(
            geometry.unit_index_min <= unit < geometry.unit_index_end_count,
            "disjoint",
            f"{what}, outside [{geometry.unit_index_min}, {geometry.unit_index_end_count})",
        )
        grains = self.grains(band, [unit])
        require(min(grains) >= self._sink_grain, "disjoint", f"{what}, inside the sink")
        for grain in sorted(grains):
            holder = self._holder_of.get(grain)
            if holder is None:
                continue
            other, its_unit = holder
            if its_unit not in self.pending[other]:
                broken("disjoint", f"{what}, whose bytes unit {its_unit} of {self.name(other)} has")
            self.settle(other, its_unit)
            if grain in self._holder_of:
                broken("pending", f"{what}, which a transfer holds back")
        self.accesses.require_clear_write(grains, what)
        self._holder_of.update(dict.fromkeys(grains, (band, unit)))

    def _name(self, band: int, name: int, unit: int) -> None:
        require(name > 0, "ids", f"band {self.name(band)} gave out name {name}")
        require(
            name not in self.place_of[band],
            "ids",
            f"band {self.name(band)} bound name {name} twice",
        )
        self.place_of[band][name] = unit

    def _require_movable(self, band: int, unit: int, what: str, *, unasked: bool) -> None:
        grains = self.grains(band, [unit])
        staying = (*STAYING, UseKind.RECEIVE_HOLD) if unasked else STAYING
        for kind, signal in self.accesses.on(grains, staying):
            broken("pinned", f"{what}, which {signal.kind} {signal.number} has ({kind})")
        self.accesses.require_clear_read(grains, what)

    def _carry_holds(self, source: Grains, destination: Grains) -> None:
        """Let a receive hold, whose peer knows no place yet, follow its unit."""
        for key in self.accesses.on(source, [UseKind.RECEIVE_HOLD]):
            members = self.accesses.uses[key]
            members -= source
            members |= destination

    def _disown(self, band: int, unit: int) -> None:
        key = self.accesses.pending_key
        if key:
            self.pending[band][unit] = key
        else:
            self._let_go(band, unit)

    def _let_go(self, band: int, unit: int) -> None:
        if self.grains(band, [unit]) & self.accesses.network():
            self.vacated[band].add(unit)
        else:
            self._forget(band, unit)

    def _forget(self, band: int, unit: int) -> None:
        for grain in self.grains(band, [unit]):
            del self._holder_of[grain]
