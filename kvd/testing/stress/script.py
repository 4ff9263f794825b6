"""What has to be done by every rank, in order: batches and launches, as the first rank did them.

A mirrored rank does each part by itself; a follower of a leader follows the log to where the part
ended. Ranks are apart by as many parts as the program has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvd.testing.stress.contents import Indices, Tags
from kvd_client import Batch

if TYPE_CHECKING:
    from kvd.testing.stress.plans import ForwardPlan, PeerPlan

Ask: TypeAlias = Callable[[Batch], object]
"""Adds one operation to a batch."""


class Fill(NamedTuple):
    """What lies in places of a host pool before a load reads it."""

    band_index: int
    places: Indices
    words: Tags
    """Words of a unit per place."""


class SendBatch:
    """A batch of operations, and what came of it once the first rank has sent it."""

    def __init__(
        self, asks: list[Ask], *, processed: list[int], fills: list[Fill], misused: bool
    ) -> None:
        self.asks = asks
        self.processed = processed
        self.fills = fills
        self.misused = misused
        """The batch holds wrong use, which has to be called that."""
        self.record = b""
        """What followers need to follow it."""
        self.position = 0
        """Up to where the first rank knows the log behind it."""
        self.error: str | None = None
        """What the first rank was told about wrong use in it; None if all was well."""
        self.peers: list[PeerPlan] = []
        """Transfers whose places were resolved in it."""


class OpenLaunch:
    """The beginning of a forward, and where it began once the first rank has launched it."""

    def __init__(
        self,
        runners: tuple[int, ...],
        writes: tuple[int, ...] | None,
        *,
        standing: bool,
        silent: bool,
        dirties_sink: bool = False,
    ) -> None:
        self.runners = runners
        """Who runs: requests, by number."""
        self.writes = writes
        """Requests that it states to write; None where nothing is stated."""
        self.standing = standing
        """The write set is stated as the standing set."""
        self.silent = silent
        self.dirties_sink = dirties_sink
        """It leaves something in the sink, as a graph's capture does."""
        self.step = 0
        self.position = 0
        self.plan: ForwardPlan | None = None
        """What it does, worked out when the first rank launches it."""


@dataclass(frozen=True, slots=True)
class CloseLaunch:
    """The end of a launch block; by an exception on the first rank if ``aborts``."""

    aborts: bool = False


Part: TypeAlias = SendBatch | OpenLaunch | CloseLaunch
