"""All bands of one arena as one allocator: the one capacity question, takes, and relief.

Every question is the same one: does some reachable layout hold what is live, what is promised and
what is asked? A yes is a take that succeeds, because promises are part of every later question and
because the answer depends on counts alone, never on where anything lies. A take that finds no room
in place rearranges the arena first; a refusal changes nothing.

Invariants:
    chain.spans_ordered: sink <= spans in chain order <= arena end, in bytes;
    chain.promises_covered: some layout holds what is live and promised, and ids suffice for it,
        as long as no unit is hard-fixed;
    chain.windows_on_owner: a window binds only virtual pages that the owner has bound;
    chain.snapshot_fresh: the snapshot kept for an epoch equals one built anew;
    chain.take_matches_answer: `make_room` serves whoever has a promise or a yes of `fits`, but for
        what transfers are in the way of.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from kvd.alloc import chain_checks
from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.band import Band, Freed, Moves, Units
from kvd.alloc.band_statistics import BandStatistics
from kvd.alloc.checks import CheckLevel, CheckMonitor
from kvd.errors import OperationError
from kvd.price.geometry import ChainGeometry
from kvd.price.layout import Layout, Step, move_order
from kvd.price.plans import feasible, first_plan, plan
from kvd.price.refusal import Obstacle, ObstacleKind, never_fits, obstacle_text, why_not
from kvd.price.search import Spans
from kvd.price.snapshot import ChainSnapshot, Tier, empty_snapshot, reclaimed
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Reason

UnitCounts = tuple[int, ...]
"""Units per band, chain order."""

SPARE_UNITS_MAX = 4096
SPARE_DIVISOR = 16
"""A band that grows adds up to a sixteenth of what it holds: sixteen times fewer growths, and never
more bytes than a rearrangement gives back without a copy."""

LARGER_BUDGET = "a larger budget"
NOBODY_ELSE = "a larger budget: nobody but who asks holds memory"


class BandMoves(NamedTuple):
    """Copies that a band's rearrangement asks for."""

    band_index: int
    moves: Moves


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a demand has no place now: the reason, and what the band it names lacks."""

    reason: Reason
    band: str
    short_units: int
    short_bytes: int
    obstacle: str
    remover: str
    waiting_helps: bool


class ChainAllocator:
    """The bands of an arena, low to high, sharing its bytes."""

    def __init__(
        self,
        geometry: ChainGeometry,
        *,
        lifetimes: tuple[Lifetime, ...],
        virtual_page_count: int,
        virtual_slot_count: int,
        monitor: CheckMonitor,
    ) -> None:
        assert lifetimes.count(Lifetime.FULL) == 1
        assert len(lifetimes) == len(geometry.bands)
        self.geometry = geometry
        self.lifetimes = lifetimes
        self.monitor = monitor
        self.order = ArenaOrder(monitor)
        self.steps = self.order.steps
        self.bands = tuple(
            Band(
                band,
                id_count=virtual_slot_count if lifetime is Lifetime.STATE else virtual_page_count,
                mints=lifetime is not Lifetime.WINDOW,
                monitor=monitor,
                order=self.order,
            )
            for band, lifetime in zip(geometry.bands, lifetimes, strict=True)
        )
        self.owner_index = lifetimes.index(Lifetime.FULL)
        self.owner = self.bands[self.owner_index]
        self.window_indices = tuple(
            index for index, lifetime in enumerate(lifetimes) if lifetime is Lifetime.WINDOW
        )
        self._windows = tuple(self.bands[index] for index in self.window_indices)
        self.token_indices = tuple(
            index for index, lifetime in enumerate(lifetimes) if lifetime is not Lifetime.STATE
        )
        self.state_index = lifetimes.index(Lifetime.STATE) if Lifetime.STATE in lifetimes else None
        self.relief_counts = dict.fromkeys((step.value for step in Step), 0)
        self._nothing = (0,) * len(geometry.bands)
        self.empty = empty_snapshot(
            geometry,
            tuple(None if band.free_ids is None else len(band.free_ids) for band in self.bands),
        )
        """What the chain would be without a request."""
        self._snapshot = self.build_snapshot(0)

    # ---- questions ------------------------------------------------------------------------------

    @property
    def epoch_count(self) -> int:
        """Return a number that moves with every capacity fact of the chain."""
        return sum(
            [band.epoch_count + band.usage.epoch_count for band in self.bands],
            self.order.fences.epoch_count,
        )

    @property
    def spans(self) -> Spans:
        """Return the bands' spans, low to high."""
        return tuple(band.span for band in self.bands)

    @property
    def move_epoch(self) -> int:
        """Return a number that moves whenever anything moved: whether places may be stale."""
        return sum([band.move_batches_total for band in self.bands])

    @property
    def promised_units(self) -> UnitCounts:
        """Return what is promised and not taken, per band."""
        return tuple([band.promised_units for band in self.bands])

    def snapshot(self) -> ChainSnapshot:
        """Return counts and frontiers of all bands; kept until a capacity fact moves."""
        epoch_count = self.epoch_count
        kept = self._snapshot
        if kept.epoch_count != epoch_count:
            kept = self._snapshot = self.build_snapshot(epoch_count)
        elif self.monitor.level is CheckLevel.STRICT:
            chain_checks.check_snapshot(kept, self.build_snapshot(epoch_count), self.monitor)
        return kept

    def fits_empty(self, demand_units: UnitCounts) -> bool:
        """Return whether the demand fits an arena that holds nothing else, ids included."""
        return feasible(self.empty, demand_units)

    def fits(
        self,
        demand_units: UnitCounts,
        *,
        freed_units: UnitCounts | None = None,
        released_units: UnitCounts | None = None,
    ) -> bool:
        """Return whether some layout holds what is live, promised and asked.

        ``freed_units`` are live units counted as free, ``released_units`` promises counted as over:
        what would come back if somebody ended first.
        """
        snapshot = self.snapshot()
        if freed_units is not None:
            snapshot = reclaimed(snapshot, freed_units)
        return feasible(snapshot, self._with_promises(demand_units, released_units))

    def has_room_now(
        self, wanted_units: UnitCounts, *, freed_units: UnitCounts | None = None
    ) -> bool:
        """Return whether `make_room` serves what is wanted, where `fits` has said yes.

        It does not while a transfer holds units or bytes that would have to move. ``freed_units``
        are live units counted as free.
        """
        if self.order.fences.is_empty and all(band.usage.is_clear for band in self.bands):
            return True
        snapshot = self.snapshot()
        if freed_units is not None:
            snapshot = reclaimed(snapshot, freed_units)
        layout = first_plan(snapshot, wanted_units)
        return layout is not None and layout.tier is Tier.STREAM

    def explain(self, demand_units: UnitCounts, *, own_units: UnitCounts | None = None) -> Shortage:
        """Explain a no of `fits`: what is short, what is in the way, who could remove it.

        ``own_units`` are what the requests that ask hold and were promised already: waiting does
        not free that.
        """
        demand = self._with_promises(demand_units, None)
        own = self._nothing if own_units is None else own_units
        whole = tuple([asked + mine for asked, mine in zip(demand_units, own, strict=True)])
        others_hold = any(
            band.live_units + band.promised_units > mine
            for band, mine in zip(self.bands, own, strict=True)
        )
        shortage = self._shortage(demand)
        if shortage.reason is Reason.TRANSFERS:
            return shortage
        if any(own) and not others_hold:
            return replace(shortage, remover=NOBODY_ELSE, waiting_helps=False)
        if not self.fits_empty(whole):
            return replace(shortage, remover=LARGER_BUDGET, waiting_helps=False)
        return shortage if others_hold else replace(shortage, waiting_helps=False)

    def explain_empty(self, demand_units: UnitCounts) -> Shortage:
        """Explain a no of `fits_empty`; no wait changes it."""
        found = never_fits(self.empty, demand_units)
        assert found is not None, "the demand fits an empty arena"
        obstacle, text = found
        return self._short_of(obstacle, text, remover=LARGER_BUDGET, waiting_helps=False)

    def build_snapshot(self, epoch_count: int) -> ChainSnapshot:
        """Return the snapshot of this moment, whatever is remembered."""
        snapshot = ChainSnapshot(
            self.geometry.arena_bytes,
            self.geometry.sink_bytes,
            tuple([band.snapshot() for band in self.bands]),
            epoch_count=epoch_count,
        )
        if self.order.fences.is_empty and all(band.usage.is_clear for band in self.bands):
            return snapshot
        vacated = [(band.transferring_units(), band.geometry.unit_bytes) for band in self.bands]
        return snapshot._replace(
            blocked=self.order.fences.blocked(vacated),
            quarantined=self.order.fences.quarantined(),
        )

    def excused(self, shortage: Shortage) -> Shortage:
        """Return why `make_room` did not serve a promise or a yes; only others' uses excuse that.

        A load that is about to be named, and a transfer gone astray, are fixed whatever was
        promised before.
        """
        snapshot = self.snapshot()
        is_fixed = any(band.hard_fixed for band in snapshot.bands)
        if shortage.reason is not Reason.TRANSFERS and not (is_fixed or snapshot.quarantined):
            self.monitor.stop(
                "chain.take_matches_answer",
                f"a promised take found no room: {shortage.obstacle}, band {shortage.band} is "
                f"{shortage.short_units} units short",
            )
        return shortage

    # ---- changes --------------------------------------------------------------------------------

    def process_step(self, step: int) -> bool:
        """Take in that a step was processed; return whether it had not retired before.

        What pends under it and under earlier steps comes back. Raises OperationError, with nothing
        changed, for a step that is not the oldest in flight.
        """
        retired_count = self.steps.retired_count
        self.steps.process(step)
        if step > retired_count:
            self.order.retire(step)
        for band in self.bands:
            band.release_pending_through(step)
        return step > retired_count

    def launch_step(self, step: int, position: int, writes: list[Units] | None) -> None:
        """Take in a launched step and the ids that it writes per band; None: any unit.

        Raises OperationError, with nothing changed, for a step that is not next.
        """
        self.steps.launch(step, position)
        if self.steps.was_aborted(step):
            writes = None
        for index, band in enumerate(self.bands):
            band.open_writes(step, None if writes is None else writes[index])

    def abort_step(self, step: int) -> None:
        """Take in one rank's word that it left a launch: what that step writes is unknown.

        Raises OperationError for a step that nobody can have launched.
        """
        self.steps.abort(step)
        if self.steps.retired_count < step <= self.steps.launched_count:
            for band in self.bands:
                band.open_writes(step, None)

    def make_room(self, wanted_units: UnitCounts) -> list[BandMoves] | Shortage:
        """Have every band hold holes for what is about to be taken, rearranging if it must.

        The caller has a promise for it, or a yes of `fits`. What has to be copied comes back in
        order, behind what `order.take_waits` names; a shortage says that only transfers in flight
        are in the way, and then nothing is changed.

        Holes are used first, then the oldest pending batches, then growth. Only a layout that moves
        something has every batch settled, because what pends lies where it wants to draw back.
        """
        for band, wanted in zip(self.bands, wanted_units, strict=True):
            if wanted > band.hole_units:
                break
        else:
            return []
        if not self.has_room_now(wanted_units):
            return self._shortage(wanted_units)
        self.settle_freed()
        snapshot = self.snapshot()
        layout = plan(snapshot, self._generous(wanted_units), Step.NO_MOVE, Tier.STREAM)
        if layout is None:
            layout = first_plan(snapshot, wanted_units)
        if layout is None or layout.tier is not Tier.STREAM:
            return self._shortage(wanted_units)
        if layout.step is Step.NO_MOVE:
            moved = self._realize(snapshot, layout)
            for band, wanted in zip(self.bands, wanted_units, strict=True):
                while wanted > band.hole_units:  # what a transfer touches becomes no hole
                    self.order.wait_step(band.settle_pending(1))
            return moved
        if any(band.pending_units for band in self.bands):
            # Also where every step has retired: what was freed since pends all the same.
            self._recover()
            snapshot = self.snapshot()
            layout = first_plan(snapshot, wanted_units)
            if layout is None or layout.tier is not Tier.STREAM:
                self.monitor.stop(
                    "chain.take_matches_answer",
                    f"settling what pends took the room for {wanted_units} units away",
                )
        return self._realize(snapshot, layout)

    def take_pages(self, count: int) -> tuple[Units, list[Units]]:
        """Mint ``count`` virtual pages and bind a unit of every token band to each.

        Returns the virtual pages, and the physical pages per token band in chain order. The bands
        hold enough holes, as `make_room` left them.
        """
        assert self.owner.free_ids is not None
        virtual = self.owner.free_ids.take(count)
        physical: list[Units] = []
        for index in self.token_indices:
            band = self.bands[index]
            units = band.acquire(count)
            band.bind(virtual, units)
            physical.append(units)
        return virtual, physical

    def take_slots(self, count: int) -> tuple[Units, Units]:
        """Mint ``count`` state slots; return their ids and their units."""
        assert self.state_index is not None
        band = self.bands[self.state_index]
        assert band.free_ids is not None
        virtual = band.free_ids.take(count)
        units = band.acquire(count)
        band.bind(virtual, units)
        self.steps.clearings.hand_out(virtual)
        return virtual, units

    def release(self, freed: list[Freed]) -> None:
        """Free ids of units, band by band, that the books say are held.

        Nobody else named them, so an id that cannot be freed is a broken invariant.
        """
        for index, virtual in freed:
            try:
                self.bands[index].release(virtual)
            except OperationError as error:
                name = chain_checks.misfreed_name(self.lifetimes[index], virtual)
                self.monitor.stop(name, error.message)
            if index == self.state_index:
                self.steps.clearings.forget(virtual)
        if self.monitor.level >= CheckLevel.WARN:
            for index, virtual in freed:
                if index == self.owner_index:
                    chain_checks.check_released(virtual, self._windows, self.monitor)

    def merge_freed(self) -> None:
        """Merge freed units into the ordered holes."""
        for band in self.bands:
            band.merge_freed()

    def settle_freed(self) -> None:
        """Merge freed units into the ordered holes and draw frontiers back over spare ones."""
        for band in self.bands:
            if band.hole_units:
                band.merge_freed()
                band.absorb()

    def compact(self, units_max: int) -> list[BandMoves]:
        """Draw the ends' frontiers back by at most ``units_max`` moves in all, unasked.

        It makes later takes cheaper and changes no answer. Floats are left where they are, and so
        is whatever a forward, a copy or a transfer may be using.
        """
        self.settle_freed()
        moved: list[BandMoves] = []
        for index, band in enumerate(self.bands):
            moves = band.compact(units_max)
            if moves is not None:
                units_max -= moves.sources.size
                moved.append(BandMoves(index, moves))
        return moved

    # ---- looking in -----------------------------------------------------------------------------

    def statistics(self) -> tuple[BandStatistics, ...]:
        """Return every band's counts, low to high."""
        return tuple(band.statistics() for band in self.bands)

    def check(self, *, deep: bool | None = None) -> None:
        """Check the chain, and if ``deep`` every band from its maps; so in strict mode anyway."""
        monitor = self.monitor
        if monitor.level < CheckLevel.WARN:
            return
        chain_checks.check_spans(self.bands, self.geometry, monitor)
        self.order.check()
        kept = self.snapshot()
        chain_checks.check_answers(self.bands, kept, self.build_snapshot(kept.epoch_count), monitor)
        if monitor.goes_deep(deep):
            chain_checks.check_maps(self.bands, self.owner, self._windows, monitor)

    # ---- inside ---------------------------------------------------------------------------------

    def _generous(self, wanted_units: UnitCounts) -> UnitCounts:
        """Return a demand that lets a band that has to grow do so for some steps at once.

        Spare holes cost nothing: they are absorbed as soon as another band needs the bytes.
        """
        return tuple(
            [
                wanted + min(SPARE_UNITS_MAX, band.live_units // SPARE_DIVISOR)
                if wanted > band.hole_units + band.pending_units
                else wanted
                for band, wanted in zip(self.bands, wanted_units, strict=True)
            ]
        )

    def _realize(self, snapshot: ChainSnapshot, layout: Layout) -> list[BandMoves]:
        """Make the layout real: flush ends, relocate floats in an order that is free, then grow."""
        assert layout.epoch_count == self.epoch_count, "the layout is void, a capacity fact moved"
        moved: list[BandMoves] = []
        for index in (*layout.flushed, *move_order(snapshot, layout)):
            moves = self.bands[index].rearrange(layout.spans[index])
            if moves is not None:
                moved.append(BandMoves(index, moves))
        for band, span in zip(self.bands, layout.spans, strict=True):
            if band.span != span:
                band.grow(span)
        self.relief_counts[layout.step.value] += 1
        return moved

    def _recover(self) -> None:
        """Settle everything that pends: what is about to move or to leave lies among it."""
        for band in self.bands:
            if band.pending_units:
                self.order.wait_step(band.settle_pending(band.pending_units))
        self.settle_freed()

    def _with_promises(
        self, demand_units: UnitCounts, released_units: UnitCounts | None
    ) -> UnitCounts:
        released = self._nothing if released_units is None else released_units
        return tuple(
            [
                demand + band.promised_units - less
                for demand, band, less in zip(demand_units, self.bands, released, strict=True)
            ]
        )

    def _shortage(self, demand_units: UnitCounts) -> Shortage:
        """Explain why a demand, promises included, has no place; it may be transfers alone."""
        obstacle = why_not(self.snapshot(), demand_units)
        if obstacle is None:
            return Shortage(
                reason=Reason.TRANSFERS,
                band="",
                short_units=0,
                short_bytes=0,
                obstacle="pages that transfers still touch would have to move",
                remover="the end of those transfers",
                waiting_helps=True,
            )
        by_transfer = obstacle.kind in (ObstacleKind.FIXED, ObstacleKind.BLOCKED)
        return self._short_of(
            obstacle,
            obstacle_text(self.snapshot(), obstacle, promised_units=self.promised_units),
            remover="the transfer's end" if by_transfer else "a request that ends",
            waiting_helps=True,
        )

    def _short_of(
        self, obstacle: Obstacle, text: str, *, remover: str, waiting_helps: bool
    ) -> Shortage:
        """Return an obstacle as what the band that it names lacks."""
        return Shortage(
            reason=Reason.NO_IDS if obstacle.kind is ObstacleKind.IDS else Reason.NO_BYTES,
            band=self.bands[obstacle.band_index].geometry.name,
            short_units=obstacle.units_short_units,
            short_bytes=obstacle.bytes_short_bytes,
            obstacle=text,
            remover=remover,
            waiting_helps=waiting_helps,
        )
