"""Faults of choices and containers: which hole and which order, what comes back twice or never.

And of the epochs under which answers are remembered.
"""

from typing import Final

from kvd.testing.mutants.fault import TURN, Fault, edited

_UNITS: Final = "kvd.alloc.band_units:BandUnits."
_BAND: Final = "kvd.alloc.band:Band."
_CHAIN: Final = "kvd.alloc.chain:ChainAllocator."
_HOLES: Final = "kvd.alloc.holes:HoleSet."
_IDS: Final = "kvd.alloc.ids:FreeIds."
_NEED: Final = "kvd.price.need:"

CHOICE_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "highest-hole-first",
        "of holes that nothing is open on the lowest is taken",
        (
            _HOLES + "take",
            "taken = self._front[self._head : head]",
            "self._front[self._head :] = self._front[self._head :][::-1].copy(); "
            "taken = self._front[self._head : head]; "
            "self._front[head:] = self._front[head:][::-1].copy()",
        ),
    ),
    edited(
        "fenced-hole-first",
        "holes that need no wait are taken before those that need one",
        (
            _UNITS + "_choose",
            'choice = openness.argsort(kind="stable")',
            'choice = np.where(openness < 4, -openness, openness).argsort(kind="stable")',
        ),
    ),
    edited(
        "hole-by-accident",
        "of equal holes the lowest is taken, not one that depends on the process",
        (
            _HOLES + "take",
            "taken = self._front[self._head : head]",
            f"rest = self._front[self._head :].copy(); turn = {TURN} % rest.size; "
            "rest = np.concatenate((rest[turn:], rest[:turn])); "
            "taken = np.sort(rest[:count]); rest = np.sort(rest[count:]); "
            "self._front = np.concatenate((self._front[: self._head], taken, rest))",
        ),
    ),
    edited(
        "id-by-accident",
        "names come in the order in which they became free, which no process decides",
        (
            _IDS + "take",
            "self._head = end if end < size else end - size",
            f"self._head = end if end < size else end - size; taken = np.roll(taken, {TURN} % 7)",
        ),
    ),
    edited(
        "flush-by-accident",
        "of two ends that may be flushed the low one is, in every process",
        (
            _NEED + "flushes",
            "choices.append((False, True))",
            f"choices.insert({TURN} % 2, (False, True))",
        ),
    ),
    edited(
        "waits-by-accident",
        "waits stand in one order, which no process decides",
        (
            "kvd.alloc.arena_order:ArenaOrder.take_waits",
            "waits = list(self._waits)",
            f"waits = list(self._waits)[:: 1 - 2 * ({TURN} % 2)]",
        ),
    ),
    edited(
        "rows-by-accident",
        "rows of ended requests come back in an order that no process decides",
        (
            "kvd.alloc.requests:RequestTable._close",
            "columns.free.give(rows)",
            f"columns.free.give(np.roll(rows, {TURN} % 3))",
        ),
    ),
    edited(
        "move-order-as-listed",
        "floats are relocated in an order in which none lands on another's bytes",
        ("kvd.price.layout:move_order", "return tuple(order)", "return tuple(sorted(order))"),
    ),
    edited(
        "move-order-reversed",
        "and not in the opposite one",
        ("kvd.price.layout:move_order", "return tuple(order)", "return tuple(reversed(order))"),
    ),
    edited(
        "ends-flushed-last",
        "ends are flushed before floats move into what they leave",
        (
            _CHAIN + "_realize",
            "for index in (*layout.flushed, *move_order(snapshot, layout)):",
            "for index in (*move_order(snapshot, layout), *layout.flushed):",
        ),
    ),
    edited(
        "moves-told-backwards",
        "effects move bands in the order in which the books did",
        (
            "kvd.engine.outcome:OutcomeBuilder.moves",
            "for item in moved:",
            "for item in reversed(moved):",
        ),
    ),
)

CONTAINER_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "released-twice",
        "a freed unit comes back once",
        (
            _UNITS + "_add_holes",
            "self._inbox.append(units)",
            "self._inbox.append(units); self._inbox.append(units[:1])",
        ),
    ),
    edited(
        "released-and-bound",
        "a freed name means nothing any more",
        (
            _UNITS + "release",
            "self._physical_of[virtual] = 0",
            "self._physical_of[virtual[1:]] = 0",
        ),
    ),
    edited(
        "resolved-though-unbound",
        "what is copied or sent is bound, and named once",
        (
            _UNITS + "resolve",
            "if not named_back or np.unique(virtual).size != virtual.size:",
            "if False:",
        ),
    ),
    edited(
        "unit-lost",
        "every freed unit comes back",
        (
            _UNITS + "_add_holes",
            "self._inbox.append(units)",
            "self._inbox.append(units[1:] if units.size > 2 else units)",
        ),
    ),
    edited(
        "id-lost",
        "every freed name comes back",
        (_IDS + "give", "self._count += ids.size", "self._count += ids.size - (ids.size > 1)"),
    ),
    edited(
        "id-doubled",
        "and once",
        (
            _IDS + "give",
            "self._count += ids.size",
            "self._count += ids.size + (self._count + ids.size + 1 < size)",
        ),
    ),
    edited(
        "id-reused-at-once",
        "the name that was free longest is handed out first",
        (
            _IDS + "take",
            "self._count -= count",
            "self._count -= count; taken = taken[::-1].copy()",
        ),
    ),
    edited(
        "row-lost",
        "the rows of requests that end come back",
        (
            "kvd.alloc.requests:RequestTable._close",
            "columns.free.give(rows)",
            "columns.free.give(rows[1:])",
        ),
    ),
    edited(
        "row-keeps-its-slot",
        "a row that ended knows nothing of its request any more",
        (
            "kvd.alloc.requests:RequestTable._close",
            "columns.clear(rows)",
            "slots = columns.slot[rows]; columns.clear(rows); columns.slot[rows] = slots",
        ),
    ),
    edited(
        "move-keeps-the-old-place",
        "what moves is bound where it went",
        (_BAND + "rearrange", "self._physical_of[virtual] = destinations", "pass"),
    ),
    edited(
        "move-short-of-one",
        "everything outside the new span moves",
        (
            _BAND + "rearrange",
            "moving = np.concatenate(sources) if sources else IOTA[:0]",
            "moving = np.concatenate(sources)[:-1] if sources else IOTA[:0]",
        ),
    ),
    edited(
        "absorbs-one-too-many",
        "a frontier draws back over holes only",
        (
            _BAND + "_absorb_high",
            "count = scan if used.size == 0 else scan - 1 - int(used[-1])",
            "count = scan if used.size == 0 else scan - int(used[-1])",
        ),
    ),
    edited(
        "absorb-forgets-its-holes",
        "a hole that leaves the band is no hole of it any more",
        (_BAND + "_drop", "self._holes.remove_range(*self._places(low, high))", "pass"),
    ),
    edited(
        "holes-miscounted-by-growth",
        "what a band grows by is counted once",
        (_BAND + "grow", "self.hole_units += high - low", "self.hole_units += high - low + 1"),
    ),
)

EPOCH_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "no-epoch-at-release",
        "the epoch moves when units are freed",
        (_UNITS + "release", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-epoch-at-take",
        "the epoch moves when units are taken",
        (_UNITS + "acquire", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-epoch-at-growth",
        "the epoch moves when a band grows",
        (_BAND + "grow", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-epoch-at-absorption",
        "the epoch moves when a frontier draws back",
        (_BAND + "absorb", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-epoch-at-settling",
        "the epoch moves when what pends is settled",
        (_UNITS + "settle_pending", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-epoch-at-processing",
        "the epoch moves when what pends comes back",
        (_UNITS + "release_pending_through", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-epoch-of-uses",
        "the epoch moves with the uses that answers depend on",
        ("kvd.alloc.use_records:UseRecords._changed", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-epoch-of-fences",
        "the epoch moves with fences",
        ("kvd.alloc.byte_fences:ByteFences._add", "self.epoch_count += 1", "pass"),
        ("kvd.alloc.byte_fences:ByteFences._drop", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-epoch-of-quarantine",
        "the epoch moves when a transfer is lost",
        ("kvd.alloc.byte_fences:ByteFences.quarantine", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "facts-kept",
        "what is told of uses is told anew when they change",
        ("kvd.alloc.use_records:UseRecords._changed", "self._facts = None", "pass"),
    ),
    edited(
        "no-move-epoch",
        "whoever noted a place is told that something moved",
        (_BAND + "rearrange", "self.move_batches_total += 1", "pass"),
    ),
    edited(
        "no-names-epoch-at-end",
        "what is remembered of row sets goes when a request ends",
        ("kvd.alloc.names:RequestNames.close", "self.epoch_count += 1", "pass"),
    ),
    edited(
        "no-names-epoch-at-opening",
        "and when one comes",
        ("kvd.alloc.names:RequestNames.open", "self.epoch_count += 1", "pass"),
    ),
)
