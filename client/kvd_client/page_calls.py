"""The calls of a batch about pages that outlive requests: values, copies and transfers.

Values, copies and transfers have numbers that the program chooses: positive, and each higher than
all of its kind before. Loads and backups are both copies.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from kvd_client.arrays import id_array
from kvd_client.errors import ReplyError, UsageError
from kvd_client.results import NONE, Columns, Handle, Int64s, ResolvedUnits, column
from kvd_proto.operations import (
    BackupSubmit,
    CancelHold,
    Evict,
    Hold,
    Insert,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Post,
    Publish,
    ResetSink,
)
from kvd_proto.outcomes import AnyResult, Done, Freed, Resolved

T = TypeVar("T")
PlacesOf = Mapping[str, Sequence[int] | Int64s]
"""By band: pages, slots of the state band, or places in the band's host pool."""
INT32_MAX = 2**31 - 1


CheckPlaces: TypeAlias = Callable[[str, Int64s, str], None]
"""Raises UsageError unless a band's host pool has these places; the last names who asks."""


class PageCalls(ABC):
    """Part of a batch; every method returns a handle to call after the block."""

    _bands: tuple[str, ...]
    _check_places: CheckPlaces

    def reset_sink(self) -> Handle[Done]:
        """Fill the sink with zero behind all forwards so far, as after a graph's capture."""
        return self._done("reset_sink", ResetSink())

    def insert(self, value: int, request: int) -> Handle[Done]:
        """End a request, but keep its pages and its slot as a value; its promises come back.

        Pages keep their virtual ids; those that slid out of a window are no part of it there.
        """
        return self._done("insert", Insert(value, request))

    def evict(self, values: Sequence[int] | Int64s) -> Handle[Freed]:
        """Give up values: their pages and slots come back. Copies and sends of them go on.

        Not while a load into one is not submitted, or a peer writes it.
        """
        operation = Evict(id_array(values).astype("<i8").tobytes())
        return self._new("evict", operation, partial(_expect, Freed))

    def load_reserve(self, load: int, value: int, units: Mapping[str, int]) -> Handle[Done]:
        """Take units of window bands for a load of pages that a value lacks there.

        They stay where they are until `load_name` has named them: take little else in between.
        """
        counts = tuple(units.get(band, 0) for band in self._known(units))
        return self._done("load_reserve", LoadReserve(load, value, counts))

    def load_name(self, load: int, band: str, pages: Sequence[int] | Int64s) -> Handle[Done]:
        """Give a load's next units of a band the names of pages of its value."""
        bands = self._known({band: ()})
        ids = id_array(pages).astype("<i8").tobytes()
        return self._done("load_name", LoadName(load, bands.index(band), ids))

    def load_submit(self, load: int, places: PlacesOf) -> Handle[Done]:
        """Start a load: the named pages are written from these places of the host pools.

        Forwards that read the pages come after its end: `Rank.take_released` names it.
        """
        return self._done("load_submit", LoadSubmit(load, self._host("load_submit", places)))

    def load_cancel(self, load: int) -> Handle[Freed]:
        """Give up a load that is not submitted; its units come back."""
        return self._new("load_cancel", LoadCancel(load), partial(_expect, Freed))

    def backup(self, backup: int, units: PlacesOf, places: PlacesOf) -> Handle[Done]:
        """Start a copy of pages and slots to places of the host pools, pair by pair."""
        operation = BackupSubmit(backup, self._ids(units), self._host("backup", places))
        return self._done("backup", operation)

    def hold(self, transfer: int, units: PlacesOf) -> Handle[Done]:
        """Announce a transfer into pages and slots; whoever has them neither ends nor advances."""
        return self._done("hold", Hold(transfer, self._ids(units)))

    def publish(self, transfer: int) -> Handle[ResolvedUnits]:
        """Ask where the units of a held transfer lie, for the peer that writes them from now on."""
        return self._new("publish", Publish(transfer), self._read_resolved)

    def post(self, transfer: int, units: PlacesOf) -> Handle[ResolvedUnits]:
        """Ask where units lie, for a peer that reads them from now on.

        No step in flight, no load and no peer may still write them.
        """
        return self._new("post", Post(transfer, self._ids(units)), self._read_resolved)

    def cancel_hold(self, transfer: int) -> Handle[Done]:
        """Give up a held transfer that was not published."""
        return self._done("cancel_hold", CancelHold(transfer))

    @abstractmethod
    def _add(
        self,
        operation: Operation,
        handle: Handle[T],
        *,
        ids: Int64s | None = None,
        tokens: Int64s | int = 0,
        removed: Int64s | None = None,
    ) -> Handle[T]:
        """Add an operation to the batch."""

    def _done(self, name: str, operation: Operation) -> Handle[Done]:
        return self._new(name, operation, partial(_expect, Done))

    def _new(
        self, name: str, operation: Operation, read: Callable[[AnyResult, Columns], T]
    ) -> Handle[T]:
        return self._add(operation, Handle(name, read))

    def _ids(self, units: PlacesOf) -> tuple[bytes, ...]:
        return tuple(
            id_array(units.get(band, NONE)).astype("<i8").tobytes() for band in self._known(units)
        )

    def _host(self, what: str, places: PlacesOf) -> tuple[bytes, ...]:
        encoded: list[bytes] = []
        for band in self._known(places):
            array = id_array(places.get(band, NONE))
            odd = array[(array < 0) | (array > INT32_MAX)]
            if len(odd):
                raise UsageError(f"{what}: place {int(odd[0])} is outside [0, {INT32_MAX}]")
            if len(array):
                self._check_places(band, array, what)
            encoded.append(array.astype("<i4").tobytes())
        return tuple(encoded)

    def _known(self, named: Mapping[str, object]) -> tuple[str, ...]:
        """Return the chain's bands; raises UsageError for a name that is none of them."""
        for band in named:
            if band not in self._bands:
                raise UsageError(f"there is no band {band!r}; the plan has {list(self._bands)}")
        return self._bands

    def _read_resolved(self, result: AnyResult, columns: Columns) -> ResolvedUnits:
        resolved = _expect(Resolved, result, columns)
        if len(resolved.physical) != len(self._bands):
            raise ReplyError(
                f"an answer resolves {len(resolved.physical)} bands of {len(self._bands)}"
            )
        return ResolvedUnits(
            {
                band: column(columns, index)
                for band, index in zip(self._bands, resolved.physical, strict=True)
            },
            resolved.move_epoch,
        )


def _expect(kind: type[T], result: AnyResult, _columns: Columns) -> T:
    if not isinstance(result, kind):
        raise ReplyError(f"{type(result).__name__} came where {kind.__name__} was due")
    return result
