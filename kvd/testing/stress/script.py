"""What has to be done by every rank, in order: batches and launches, as the first rank did them.

A mirrored rank does each part by itself; a follower of a leader follows the log to where the part
ended. Ranks are apart by as many parts as the program has them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kvd.testing.stress.contents import Indices, Tags
from kvd.testing.stress.plans import ForwardPlan, PeerPlan
from kvd_client import Batch

Ask: TypeAlias = Callable[[Batch], object]
"""Adds one operation to a batch."""


class Fill(NamedTuple):
    """What lies in places of a host pool before a load reads it."""

    band_index: int
    places: Indices
    words: Tags
    """Words of a unit per place."""


@dataclass(slots=True)
class SendBatch:
    """A batch of operations."""

    asks: list[Ask]
    processed: list[int]
    fills: list[Fill]
    misused: bool = False
    """The batch holds wrong use, which has to be called that."""
    record: bytes = b""
    """What followers need to follow it."""
    position: int = 0
    """Up to where the first rank knows the log behind it."""
    error: str | None = None
    """What the first rank was told about wrong use in it; None if all was well."""
    peers: list[PeerPlan] = field(default_factory=list[PeerPlan])
    """Transfers whose places were resolved in it."""


@dataclass(slots=True)
class OpenLaunch:
    """The beginning of a forward."""

    runners: tuple[int, ...]
    """Who runs: requests, by number."""
    writes: tuple[int, ...] | None
    """Requests that it states to write; None where nothing is stated."""
    standing: bool
    """The write set is stated as the standing set."""
    silent: bool
    dirties_sink: bool = False
    """It leaves something in the sink, as a graph's capture does."""
    step: int = 0
    position: int = 0
    plan: ForwardPlan | None = None
    """What it does, worked out when the first rank launches it."""


@dataclass(slots=True)
class CloseLaunch:
    """The end of a launch block; by an exception on the first rank if ``aborts``."""

    aborts: bool = False


Part: TypeAlias = SendBatch | OpenLaunch | CloseLaunch
