"""A model of the arena's bytes: every byte says which live unit wrote it last.

Moves carry bytes along and hand-outs write them. After any operation each live unit must find
exactly its own bytes where the maps say that it lies.

A forward in flight may read and write whatever was live when it was launched, for as long as it
runs. So every byte also says which step may touch it last, and a write has to run behind that step:
it was processed, or the allocator's stream was told to wait for it.

Copies and peers read or write the bytes that they were told of until they are over. Whoever writes
bytes that one of them touches, or reads bytes that one of them writes, has to run behind it: it is
over, or the allocator's stream was told to wait for it, which it never is for a peer.
"""

import numpy as np

from kvd.alloc.band import Band, Moves, Units
from kvd.alloc.chain import BandMoves, ChainAllocator
from kvd.alloc.requests import Grant
from kvd.alloc.signals import Signal

NOBODY = 0


class Access:
    """Bytes that a copy or a peer touches until it is over."""

    def __init__(self, *, writes: bool, touched: "np.ndarray[tuple[int], np.dtype[np.bool_]]"):
        self.writes = writes
        self.touched = touched


class ArenaBytes:
    """The bytes of one chain's arena."""

    def __init__(self, chain: ChainAllocator) -> None:
        self.chain = chain
        self.cells = np.full(chain.geometry.arena_bytes, NOBODY, dtype=np.int64)
        self.moved_units = 0
        self.touched_by = np.zeros(chain.geometry.arena_bytes, dtype=np.int64)
        """Per byte that no live unit holds: the newest step that may touch it."""
        self.launched = self.retired = self.unknown = 0
        self.accesses: dict[Signal, Access] = {}
        """What copies and peers do that are neither over nor waited for."""
        self._written_by: dict[tuple[int, int], int] = {}
        self._places: list[Units] = []

    def remember(self) -> None:
        """Keep where everything lies, for `freed` after the next operation."""
        self._places = [band.physical(np.arange(self._id_count(band))) for band in self.chain.bands]

    def freed(self, index: int, virtual: list[int]) -> None:
        """Note that ids came back: whatever was launched may still touch where they lay."""
        unit_bytes = self.chain.geometry.bands[index].unit_bytes
        for unit in self._places[index][virtual].tolist():
            assert unit > 0
            self.touched_by[unit * unit_bytes : (unit + 1) * unit_bytes] = self.launched
        for name in virtual:
            self._written_by.pop((index, name), None)

    def launch(self, writes: list[Units] | None) -> None:
        """Put one more forward in flight that writes these ids per band; None: any live unit."""
        self.launched += 1
        if writes is None:
            self.unknown = self.launched
            return
        for index, virtual in enumerate(writes):
            for name in virtual.tolist():
                self._written_by[index, name] = self.launched

    def wait(self, step: int) -> None:
        """Note that what follows runs behind a step, and so behind all before it."""
        self.retired = max(self.retired, step)

    def over(self, signal: Signal) -> None:
        """Note that a copy or a transfer is over, or that what follows runs behind a copy."""
        self.accesses.pop(signal, None)

    def access(self, signal: Signal, index: int, units: Units, *, writes: bool) -> None:
        """Let a copy or a peer touch units from now on; nobody else may be at work on them."""
        unit_bytes = self.chain.geometry.bands[index].unit_bytes
        access = self.accesses.setdefault(
            signal, Access(writes=writes, touched=np.zeros(self.cells.size, dtype=np.bool_))
        )
        assert access.writes == writes
        for unit in units.tolist():
            self._require_no_access(index, unit, writes=writes, own=signal)
            access.touched[unit * unit_bytes : (unit + 1) * unit_bytes] = True

    def require_over(self, index: int, virtual: Units, *, unknown: bool) -> None:
        """Assert that no step can still write units: who reads or writes them obeys no stream."""
        for name in virtual.tolist():
            step = max(self.unknown if unknown else 0, self._written_by.get((index, name), 0))
            assert step <= self.retired, f"{index}: a peer has {name} while step {step} writes it"

    def clear(self, index: int, units: Units) -> None:
        """Write zeros over units, or something that nobody reads."""
        for unit in units.tolist():
            self._require_clear(index, unit)
            self._cells(index, unit)[:] = NOBODY

    def write(self, index: int, virtual: Units, physical: Units) -> None:
        """Write units as whoever was handed them does."""
        for name, unit in zip(virtual.tolist(), physical.tolist(), strict=True):
            self._require_clear(index, unit)
            self._cells(index, unit)[:] = self._mark(index, name)

    def move(self, moved: list[BandMoves]) -> None:
        """Carry out copies one unit at a time, in the order given and backwards alike.

        The copies of one batch may run in any order, so none may read what another writes.
        """
        for index, moves in moved:
            assert_disjoint(moves)
            self.moved_units += moves.sources.size
            pairs = list(zip(moves.sources.tolist(), moves.destinations.tolist(), strict=True))
            for source, destination in reversed(pairs) if len(pairs) % 2 else pairs:
                self._require_clear(index, destination)
                self._cells(index, destination)[:] = self._cells(index, source)
            self._leave(index, moves)

    def hand_out(self, grant: Grant) -> None:
        """Write what a take handed out; its moves come first."""
        if grant.physical:
            for index, units in zip(self.chain.token_indices, grant.physical, strict=True):
                self.write(index, grant.virtual, units)
        if grant.slot_rows.size:
            assert self.chain.state_index is not None
            self.write(self.chain.state_index, grant.slot_virtual, grant.slot_physical)

    def write_all(self) -> None:
        """Write every live unit where it lies."""
        for index, band in enumerate(self.chain.bands):
            ids = band.bound_ids()
            self.write(index, ids, band.physical(ids))

    def verify(self) -> None:
        """Assert that every live unit has its own bytes and that none lies in the sink."""
        for index in range(len(self.chain.bands)):
            self.verify_band(index)

    def verify_band(self, index: int) -> None:
        """Assert the same of one band, where what others were just handed is not written yet."""
        self.verify_units(index, self.chain.bands[index].bound_ids())

    def fill(self, index: int, virtual: Units, physical: Units) -> None:
        """Write units as a copy does that was checked to be alone on them."""
        for name, unit in zip(virtual.tolist(), physical.tolist(), strict=True):
            self._cells(index, unit)[:] = self._mark(index, name)

    def verify_units(self, index: int, ids: Units) -> None:
        """Assert the same of some units of a band."""
        band = self.chain.bands[index]
        for name, unit in zip(ids.tolist(), band.physical(ids).tolist(), strict=True):
            assert unit * band.geometry.unit_bytes >= self.chain.geometry.sink_bytes
            cells = self._cells(index, unit)
            assert (cells == self._mark(index, name)).all(), (
                f"unit {unit} of band {band.geometry.name} holds {cells.tolist()}, "
                f"virtual id {name} wrote {self._mark(index, name)}"
            )

    def _id_count(self, band: Band) -> int:
        """Return how many virtual ids a band's map has entries for, the sink's included."""
        minted = band if band.free_ids is not None else self.chain.owner
        assert minted.free_ids is not None
        return len(minted.free_ids) + minted.live_units + 1

    def _leave(self, index: int, moves: Moves) -> None:
        """Require that nobody writes what moved, and note who may go on reading the old bytes."""
        unit_bytes = self.chain.geometry.bands[index].unit_bytes
        for name, unit in zip(moves.virtual.tolist(), moves.sources.tolist(), strict=True):
            step = max(self.unknown, self._written_by.get((index, name), 0))
            assert step <= self.retired, f"unit {unit} moved while step {step} may write it"
            self._require_no_access(index, unit, writes=False)
            if self.launched > self.retired:
                self.touched_by[unit * unit_bytes : (unit + 1) * unit_bytes] = self.launched

    def _require_clear(self, index: int, unit: int) -> None:
        """Assert that no step that may touch a unit's bytes can still run when they are written."""
        unit_bytes = self.chain.geometry.bands[index].unit_bytes
        step = int(self.touched_by[unit * unit_bytes : (unit + 1) * unit_bytes].max())
        assert step <= self.retired, (
            f"unit {unit} of band {self.chain.bands[index].geometry.name} is written, but step "
            f"{step} may touch it; what runs is behind step {self.retired}"
        )

        self._require_no_access(index, unit, writes=True)

    def _require_no_access(
        self, index: int, unit: int, *, writes: bool, own: Signal | None = None
    ) -> None:
        """Assert that nobody is at work on a unit who must not be met by a write, or by a read."""
        unit_bytes = self.chain.geometry.bands[index].unit_bytes
        for signal, access in self.accesses.items():
            if signal == own or not (writes or access.writes):
                continue
            assert not access.touched[unit * unit_bytes : (unit + 1) * unit_bytes].any(), (
                f"unit {unit} of band {index} is {'written' if writes else 'read'}, but "
                f"{signal.kind} {signal.number} may touch it"
            )

    def _cells(self, index: int, unit: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        unit_bytes = self.chain.geometry.bands[index].unit_bytes
        return self.cells[unit * unit_bytes : (unit + 1) * unit_bytes]

    def _mark(self, index: int, name: int) -> int:
        return name * len(self.chain.bands) + index + 1


def assert_disjoint(moves: Moves) -> None:
    """Assert that no unit of a batch is read or written twice, or both."""
    units = np.concatenate((moves.sources, moves.destinations))
    assert np.unique(units).size == units.size
    assert moves.virtual.size == moves.sources.size == moves.destinations.size > 0
