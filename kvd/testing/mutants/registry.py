"""All faults, in the order in which they are listed, and the stress profiles that suit them."""

from collections.abc import Mapping
from itertools import chain
from typing import Final, NamedTuple

from kvd.testing.mutants import books, choices, engine, layouts, ranks, requests, values
from kvd.testing.mutants.cells import CELL_FAULTS
from kvd.testing.mutants.fault import Fault, by_name
from kvd.testing.stress.shapes import NARROW, SHAPES


class Group(NamedTuple):
    """Faults of one kind."""

    name: str
    faults: tuple[Fault, ...]
    profiles: tuple[str, ...] = ()
    """Profiles of stress programs in which they show most; none: all alike."""


GROUPS: Final[tuple[Group, ...]] = (
    Group(
        "Cells of the clearance tables",
        CELL_FAULTS,
        ("meetings", "copies", "transfers", "rearranging", "meetings"),
    ),
    Group("What pends", books.PENDING_FAULTS, ("tangled", "meetings", "crowded")),
    Group(
        "Fences and vacated units",
        books.FENCE_FAULTS,
        ("meetings", "rearranging", "transfers", "stuck"),
    ),
    Group("The ledger", books.LEDGER_FAULTS, ("meetings", "transfers", "copies", "stuck")),
    Group("Alignment", layouts.ALIGNMENT_FAULTS, ("rearranging", "crowded")),
    Group("Answers", layouts.ANSWER_FAULTS, ("crowded", "stuck", "rearranging")),
    Group("Ties and order", choices.CHOICE_FAULTS, ("rearranging", "meetings", "crowded")),
    Group("Units, names and rows", choices.CONTAINER_FAULTS),
    Group("Epochs", choices.EPOCH_FAULTS, ("crowded", "meetings", "transfers")),
    Group("Windows", requests.WINDOW_FAULTS, ("sliding", "even")),
    Group("Promises", requests.PROMISE_FAULTS, ("crowded", "sliding")),
    Group("Prices", requests.PRICE_FAULTS, ("crowded", "sliding")),
    Group("Refusals", values.REFUSAL_FAULTS, ("meetings", "crowded", "tangled")),
    Group("Values", values.VALUE_FAULTS, ("death", "copies", "meetings", "cache")),
    Group("Effects", engine.EFFECT_FAULTS, ("rearranging", "meetings", "copies")),
    Group("The log", engine.LOG_FAULTS, ("tangled", "meetings", "death")),
    Group("Order on a rank", ranks.ORDER_FAULTS, ("tangled", "meetings", "crowded")),
    Group("Copies on a rank", ranks.COPY_FAULTS, ("copies", "meetings")),
    Group("Memory of a rank", ranks.MEMORY_FAULTS, ("death", "meetings")),
)
FAULTS: Final[Mapping[str, Fault]] = by_name([fault for group in GROUPS for fault in group.faults])

_SHOWN_IN: Final[Mapping[str, str]] = {
    "backed_up_and_given_up": "c2-h4 c3-h4 c4-h4 copies-not-fenced absorbed-not-fenced "
    "fence-in-units-of-its-own fence-first-range-only waits-by-accident fenced-hole-first "
    "waits-behind-moves copy-wait growth-clears-fences use-kept-after-end",
    "loaded_and_given_up": "c2-h5 c3-h5 c4-h5 load-not-kept",
    "loaded_over_what_moved": "c4-h1 c3-h5",
    "moved_back_and_forth": "c2-h1 fence-in-units-of-its-own move-order-as-listed "
    "move-order-reversed ends-flushed-last steps-not-fenced growth-clears-fences "
    "move-keeps-the-old-place no-segments end-a-unit-narrow "
    "segments-of-moves-only waits-behind-moves first-start-rounded-down last-end-rounded-up",
    "backed_up_under_forwards": "backup-waits-f r2-load",
    "load_given_up": "load-names-backwards "
    "cancelled-load-keeps-names cancelled-load-keeps-units load-names-not-told "
    "load-where-it-was-named reservation-not-fixed reservation-freed-early",
    "loaded_and_read": "r1-load r2-load load-waits-a",
    "published_over_copies": "c5-h4 c5-h5 c5-h6 publish-beside-transfers",
    "moved_under_forwards": "r1-forward r1-forward-unknown c2-h1 steps-not-fenced "
    "compaction-under-unknown compaction-of-what-is-written "
    "move-order-as-listed move-order-reversed ends-flushed-last "
    "unasked-moves-without-end first-start-rounded-down "
    "whole-end-barrier write-set-a-page-short move-short-of-one "
    "end-ignores-what-is-fixed no-segments segments-of-moves-only ends-may-cross",
    "freed_under_forwards": "pending-under-oldest no-epoch-at-settling "
    "settle-the-oldest-key oldest-step-waited pending-settled-for-nothing "
    "pending-back-at-launch pending-key-lost pending-batch-half settle-without-wait settled-late "
    "end-without-overlap forwards-in-order",
    "sent_and_given_up": "transfers-are-room-at-once "
    "c2-h6 c2-h6-left c3-h6 c4-h6 vacated-back-with-the-first "
    "blocked-bytes-entered no-epoch-of-uses network-width-left-out",
    "received_and_wanted": "r1-receive fixed-by-half no-move-epoch "
    "end-ignores-what-is-fixed received-slots-not-zeroed "
    "transfers-are-room-at-once transfers-blamed-on-nobody",
    "lost_and_wanted": "quarantine-skipped quarantine-moves",
    "dared": "r2-receive r3-forward r3-forward-unknown r3-load publish-beside-steps "
    "sent-may-be-retracted received-may-end context-exceeded "
    "wrong-advance-computes wrong-post-uses-its-number wrong-backup-uses-its-number "
    "wrong-standing-removes wrong-evict-evicts-a-part "
    "wrong-load-name-names-a-part batch-runs-on-behind-a-wrong-use resolved-though-unbound "
    "pumped-publish-lets-go",
    "wronged": "sent-may-be-retracted received-may-end context-exceeded wrong-advance-computes "
    "wrong-standing-removes wrong-evict-evicts-a-part "
    "wrong-load-name-names-a-part resolved-though-unbound batch-runs-on-behind-a-wrong-use",
    "aborted": "aborted-before-notice aborted-keeps-word aborted-whole-end aborted-word-lost",
    "moved_elsewhere": "unaware-guard unaware-guard-of-the-oldest guard-behind-what-it-guards",
    "slots_moved_before_a_launch": "clears-follow-moves slots-cleared-twice "
    "received-slots-not-zeroed slots-never-pend",
    "sink_reset_between_forwards": "sink-beside-steps sink-not-zeroed",
    "retracted_and_back": "no-names-epoch-at-end clip-one-token-generous clip-stops-early "
    "fits-without-a-row "
    "promise-of-the-first-life retraction-without-credit "
    "retraction-with-double-credit one-victim-too-many victims-from-the-end retraction-not-told "
    "refused-admission-retracts standing-set-outlives-retraction growth-left-out "
    "waiting-said-to-be-useless first-takes-left-out refused-take-marks-uneven "
    "beyond-limit-unasked refused-take-grows",
    "given_up_and_lost": "quarantined-bytes-awaited",
    "read_before_its_load": "unloaded-is-readable",
    "reported_out_of_order": "wrong-step-counts",
    "stretched": "flush-by-accident float-grows-into-the-smaller-gap",
    "sent_before_its_clearing": "uncleared-is-readable clearing-is-sent",
    "died_uncleared": "uncleared-survives",
    "admitted_elsewhere_under_a_launch": "cleared-by-a-launch-before-it",
    "died_at_once": "unsealed-survives unrun-insert-survives unknown-step-survives "
    "processed-noted-too-early aborted-word-lost",
    "moved_and_died": "unsealed-survives unrun-insert-survives copied-survives received-survives "
    "spoiled-survives unknown-step-survives survivor-forgets-its-ids survivor-among-holes "
    "processed-noted-too-early progress-per-entry "
    "progress-ahead no-redo redo-a-segment-late redo-of-confirmed-segments tables-not-cleared",
    "slots_received_before_a_launch": "clears-yield",
    "sent_and_left_behind": "no-epoch-of-fences no-epoch-of-quarantine",
    "moved_into_what_was_read": "c3-h1 fence-ends-early fence-under-oldest",
    "failed_and_died": "failed-load-is-good spoiled-survives",
    "processed_and_died": "confirmed-too-far processed-unwaited",
}
"""Faults by the meeting in which they show most, which is tried before their group's profiles."""


UNEVEN: Final = (
    "two-windows-full-coprime",
    "state-window-full-coprime",
    "state-two-windows-full-page-16",
    "state-window-full-page-1",
    "state-three-windows-full",
    "two-windows-full",
)
"""Shapes with units that sink or arena are no multiple of."""
WITH_WINDOWS: Final = tuple(
    name for name, shape in SHAPES.items() if shape.windows and name not in NARROW
)
"""Shapes whose values may lack pages that are loaded."""
_FLOATS: Final = (
    "state-two-windows-full",
    "state-three-windows-full",
    "two-windows-full",
    "two-windows-full-coprime",
    "state-two-windows-full-page-16",
)
"""Shapes with two floats and more."""
_ONE_FLOAT: Final = (
    "two-windows-full",
    "state-window-full",
    "two-windows-full-coprime",
    "state-window-full-coprime",
)
"""Shapes in which either end's room is the one float's."""
_OF_UNEVEN: Final = (
    "first-start-rounded-down last-end-rounded-up growth-past-the-ceiling sink-is-handed-out "
    "last-unit-past-the-end fence-in-units-of-its-own"
)
_OF_FLOATS: Final = (
    "move-order-as-listed move-order-reversed ends-flushed-last floats-ignore-those-above "
    "moves-of-one-band-only moves-told-backwards float-grows-into-the-smaller-gap "
    "redo-a-segment-late"
)
_OF_WINDOWS: Final = "c4-h1 c4-h4 c4-h5 c3-h5 c2-h5"
_OF_NARROW: Final = "clip-one-token-generous clip-stops-early settled-late"
_THREE_FLOATS: Final = ("state-three-windows-full",)
_WITH_FEWER_NAMES_THAN_UNITS: Final = ("window-full-few-names",)
SHAPES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(_OF_UNEVEN.split(), UNEVEN),
    **dict.fromkeys(_OF_FLOATS.split(), _FLOATS),
    **dict.fromkeys(_OF_NARROW.split(), NARROW),
    **dict.fromkeys(_OF_WINDOWS.split(), WITH_WINDOWS),
    "flush-by-accident": _ONE_FLOAT,
    "c3-h1": _THREE_FLOATS,
    "no-epoch-of-fences": _THREE_FLOATS,
    "no-epoch-of-quarantine": _THREE_FLOATS,
    "answers-without-ids": _WITH_FEWER_NAMES_THAN_UNITS,
}
"""Shapes that are tried for a fault where it does not show on all."""
ANY_SHAPE: Final = tuple(shape for shape in SHAPES if shape not in NARROW)
"""Shapes that are tried for all others."""


def _profiles_of(name: str, group: Group) -> tuple[str, ...]:
    meetings = [meeting for meeting, faults in _SHOWN_IN.items() if name in faults.split()]
    if not meetings:
        return group.profiles
    return tuple(chain(*[(*meetings, profile) for profile in group.profiles or ("meetings",)]))


PROFILES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    fault.name: _profiles_of(fault.name, group) for group in GROUPS for fault in group.faults
}
"""By fault."""
