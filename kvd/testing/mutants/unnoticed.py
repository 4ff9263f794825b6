"""Faults that nothing has noticed yet: holes of the stress harness that are to be closed.

They stay in the list of faults, are hunted like all others, and make the hunt fail.
"""

from typing import Final

UNNOTICED: Final[frozenset[str]] = frozenset(
    {
        "quarantined-bytes-awaited",
        "unloaded-is-readable",
        "flush-by-accident",
        "price-without-steps-past-the-end",
        "window-priced-a-page-short",
        "window-lag-left-out",
        "clip-one-token-generous",
        "clip-stops-early",
        "wrong-step-counts",
        "settled-late",
    }
)
