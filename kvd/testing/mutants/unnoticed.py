"""Faults that nothing has noticed yet: holes of the stress harness that are to be closed.

They stay in the list of faults, are hunted like all others, and make the hunt fail.
"""

from typing import Final

UNNOTICED: Final[frozenset[str]] = frozenset(
    {
        "c3-h1",
        "c4-h1",
        "c5-h6",
        "r1-forward-unknown",
        "r3-forward",
        "r3-load",
        "settle-the-oldest-key",
        "fence-under-oldest",
        "fence-ends-early",
        "fence-in-units-of-its-own",
        "vacated-back-with-the-first",
        "failed-load-is-good",
        "publish-beside-steps",
        "mirror-off-by-one",
        "answers-without-ids",
        "retraction-without-credit",
        "waiting-said-to-be-useless",
        "no-epoch-of-fences",
        "no-epoch-of-quarantine",
        "beyond-promise-unasked",
        "growth-left-out",
        "window-steady-a-step-short",
        "first-takes-left-out",
        "wrong-advance-computes",
        "wrong-standing-removes",
        "unrun-insert-survives",
        "spoiled-survives",
        "unknown-step-survives",
        "confirmed-too-far",
        "processed-noted-too-early",
        "standing-set-in-order-of-rows",
        "aborted-whole-end",
        "end-without-overlap",
        "ends-forgotten-early",
        "unaware-guard-of-the-oldest",
        "row-lengths-kept",
        "clears-yield",
        "progress-per-entry",
        "progress-ahead",
        "redo-a-segment-late",
        "redo-of-confirmed-segments",
    }
)
