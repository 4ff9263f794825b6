"""Faults of layouts: alignment, widths, what is in the way, and which answer follows."""

from typing import Final

from kvd.testing.mutants.fault import Fault, edited

_BAND: Final = "kvd.alloc.band:Band."
_CHAIN: Final = "kvd.alloc.chain:ChainAllocator."
_NEED: Final = "kvd.price.need:"
_PLANS: Final = "kvd.price.plans:"
_IN_PLACE: Final = "kvd.price.in_place:"
_RELAYOUT: Final = "kvd.price.relayout:"


ALIGNMENT_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "first-start-rounded-down",
        "a float begins on its grid at or above the ground",
        (
            _NEED + "first_start",
            "start = max(need.unit_index_min, -(-ground_bytes // unit_bytes))",
            "start = max(need.unit_index_min, ground_bytes // unit_bytes)",
        ),
    ),
    edited(
        "last-end-rounded-up",
        "a float ends on its grid at or below the ceiling",
        (
            _NEED + "last_start",
            "end = min(need.unit_index_end_count, ceiling_bytes // unit_bytes)",
            "end = min(need.unit_index_end_count, -(-ceiling_bytes // unit_bytes))",
        ),
    ),
    edited(
        "growth-past-the-ceiling",
        "a float grows up to its ceiling, in bytes",
        (
            _IN_PLACE + "_may_grow_up",
            "high_bytes <= ceiling_bytes",
            "high_bytes < ceiling_bytes + need.unit_bytes",
        ),
    ),
    edited(
        "end-a-unit-narrow",
        "an end holds what is live, promised and asked",
        (
            _NEED + "end_span",
            "end = max(start + need.width_units, need.keep_end_index)",
            "end = max(start + need.width_units - 1, need.keep_end_index)",
        ),
    ),
    edited(
        "end-ignores-what-is-fixed",
        "an end keeps what is fixed",
        (
            _NEED + "end_span",
            "start = min(end - need.width_units, need.keep_start_index)",
            "start = end - need.width_units",
        ),
    ),
    edited(
        "ends-may-cross",
        "the low end stays below the high one",
        (_IN_PLACE + "_bounds", "if ground_bytes <= ceiling_bytes else None", "if True else None"),
        (_RELAYOUT + "_ends", "if ground_bytes <= ceiling_bytes else None", "if True else None"),
    ),
    edited(
        "float-grows-into-the-smaller-gap",
        "of the gaps beside a float the larger is grown into, counted in whole units of its grid",
        (
            _IN_PLACE + "_grown",
            "-(-ground_bytes // need.unit_bytes)",
            "ground_bytes // need.unit_bytes",
        ),
    ),
    edited(
        "floats-ignore-those-above",
        "a float leaves those above it their room",
        (_IN_PLACE + "_bounds", "ceiling_bytes = start * unit_bytes", "pass"),
    ),
    edited(
        "sink-is-handed-out",
        "no unit shares bytes with the sink",
        (
            "kvd.price.geometry:chain_geometry",
            "unit_index_min=ceil_div(sink_bytes, unit_bytes)",
            "unit_index_min=max(1, floor_div(sink_bytes, unit_bytes))",
        ),
    ),
    edited(
        "last-unit-past-the-end",
        "the last unit ends within the arena",
        (
            "kvd.price.geometry:chain_geometry",
            "unit_index_end_count=floor_div(arena_bytes, unit_bytes)",
            "unit_index_end_count=ceil_div(arena_bytes, unit_bytes)",
        ),
    ),
    edited(
        "mirror-off-by-one",
        "a band that grows down mirrors its units about its last one",
        (
            _BAND + "_places",
            "(self._mirror + 1 - high, self._mirror + 1 - low)",
            "(self._mirror - high, self._mirror - low)",
        ),
    ),
)

ANSWER_FAULTS: Final[tuple[Fault, ...]] = (
    edited(
        "answers-without-promises",
        "what is promised is part of every question",
        (_CHAIN + "_with_promises", "demand + band.promised_units - less", "demand"),
    ),
    edited(
        "answers-promise-twice",
        "what is promised counts once",
        (
            _CHAIN + "_with_promises",
            "demand + band.promised_units - less",
            "demand + 2 * band.promised_units - less",
        ),
    ),
    edited(
        "answers-without-ids",
        "names have to suffice too",
        (
            "kvd.price.snapshot:within_ids",
            "if room is not None and demand and band.promised_units + demand > room:",
            "if room is not None and demand > 2 * room:",
        ),
    ),
    edited(
        "answers-one-unit-generous",
        "a yes means that everything has room",
        (
            _NEED + "needs_of",
            "width = live + promised + demand",
            "width = live + promised + demand - (demand > 1)",
        ),
    ),
    edited(
        "answers-one-unit-strict",
        "a no means that no layout has room",
        (
            _NEED + "needs_of",
            "width = live + promised + demand",
            "width = live + promised + demand + 1",
        ),
    ),
    edited(
        "pending-is-no-room",
        "what pends is room, because stream order frees it",
        (
            _NEED + "needs_of",
            "width = live + promised + demand",
            "width = live + promised + demand + pending",
        ),
    ),
    edited(
        "transfers-are-room-at-once",
        "what a transfer holds back is room only once that is waited for",
        (
            _PLANS + "_fits_spans",
            "if tier is _TRANSFERS:",
            "if True:",
        ),
    ),
    edited(
        "network-width-left-out",
        "units that a transfer holds back take room in their span",
        (_NEED + "needs_of", "if network and width and is_stream:", "if False:"),
    ),
    edited(
        "relocation-never-tried",
        "a demand that packs is served by relocating floats",
        (
            _RELAYOUT + "packs",
            "return ends is not None and _latest(needs, ends[1], ends[2]) is not None",
            "return False",
        ),
    ),
    edited(
        "retraction-without-credit",
        "what victims hold counts as free once they ended",
        (
            "kvd.price.snapshot:reclaimed",
            "live_units=band.live_units - evictable,",
            "live_units=band.live_units,",
        ),
        (
            "kvd.price.snapshot:reclaimed",
            "hole_units=band.hole_units + evictable,",
            "hole_units=band.hole_units,",
        ),
    ),
    edited(
        "retraction-with-double-credit",
        "and counts once",
        (
            "kvd.alloc.requests:RequestTable.fewest_ending",
            "released_units=self.holdings.owed_sums(ending),",
            "released_units=tuple([2 * it for it in self.holdings.owed_sums(ending)]),",
        ),
    ),
    edited(
        "one-victim-too-many",
        "no more victims end than are needed",
        (
            "kvd.alloc.requests:RequestTable.fewest_ending",
            "ending = victims[:count]",
            "ending = victims[: count + 1]",
        ),
    ),
    edited(
        "victims-from-the-end",
        "victims end in the order in which they are named",
        (
            "kvd.alloc.requests:RequestTable.fewest_ending",
            "ending = victims[:count]",
            "ending = victims[victims.size - count :]",
        ),
    ),
    edited(
        "transfers-blamed-on-nobody",
        "a demand that only transfers are in the way of names those",
        (
            "kvd.alloc.transfers:Transfers.awaited",
            "return tuple(sorted([signal.number for signal in signals]))",
            "return tuple(sorted([signal.number for signal in signals]))[1:]",
        ),
    ),
    edited(
        "waiting-said-to-be-useless",
        "a request that would fit an empty arena is told to wait while others hold something",
        (
            "kvd.alloc.admission:AdmissionPass.admit",
            "if not table.holder_count:",
            "if table.holder_count < 2:",
        ),
    ),
)
