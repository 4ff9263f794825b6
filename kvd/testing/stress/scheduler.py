"""Turns the steps of a program into parts of a script: a scheduler that breaks no rule.

It knows what the log says (`Model`) and nothing of allocator, ranks or device, so whoever has a log
can drive one. A step picks among what is there; where its pick cannot be served before the open
batch is decided, that is sent first, and a step that nothing fits is skipped.

`Scheduler` keeps the open batch and the steps in flight. What each step asks stands in
`request_steps`, `value_steps` and `transfer_steps`.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import numpy as np

from kvd.testing.stress.contents import Contents, Indices
from kvd.testing.stress.model import Model, Request, Value
from kvd.testing.stress.script import Ask, CloseLaunch, Fill, OpenLaunch, Part, SendBatch

T = TypeVar("T")

STEPS_IN_FLIGHT_MAX: Final = 5
BATCH_ASKS_MAX: Final = 24
POOL_PLACES_COUNT: Final = 48
"""Units of every band that a rank's host pools have room for."""


class Touch(IntEnum):
    """What the open batch does to somebody."""

    GROWS = 1
    """Takes, advances or joins the standing set: any of these may follow."""
    CHANGES = 2
    """Ends, or names units: the batch is sent before anything else touches the same."""


class Limits(NamedTuple):
    """What the stage allows."""

    context_tokens: int
    chunk_tokens: int
    page_tokens: int
    copies: bool = True
    """Whether the ranks' devices copy to host pools."""
    network_stream_count_max: int | None = None
    """Streams that all open transfers together may use on a rank; None where nothing limits them.

    A transfer uses one for every band of which it has units.
    """


class OpenBatch:
    """Operations that are asked for and not sent."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.processed: list[int] = []
        self.fills: list[Fill] = []
        self.touched: dict[tuple[str, int], Touch] = {}
        self.taken_tokens: dict[int, int] = {}
        self.advanced_tokens: dict[int, int] = {}
        self.opened_tokens: dict[int, int] = {}
        """Requests that it introduces, and the most tokens that each of them then has."""
        self.standing: dict[int, bool] = {}
        """Who joins the standing set in it, or leaves it."""
        self.standing_if_admitted: dict[int, None] = {}
        """Who joins the standing set in it only if it is admitted before."""
        self.names_units = False
        """It names units to copies or peers."""
        self.idles = False


class Scheduler:
    """What a program has asked so far, and what may be asked next."""

    def __init__(
        self, model: Model, limits: Limits, *, overlap: bool, carry: Callable[[Part], None]
    ) -> None:
        """Start with nothing asked; ``carry`` has a part carried out, and the model follow it."""
        self.model: Final = model
        self.contents: Final[Contents] = model.contents
        self.limits: Final = limits
        self.overlap: Final = overlap
        self._carry = carry
        self.batch = OpenBatch()
        self.launched_count = 0
        self.launching = False
        self.idle = False
        """Nothing may be launched before another batch."""
        self.has_notices = False
        """A launch is to be noticed by the next batch."""
        self.used_places: dict[int, dict[int, int]] = {}
        """By band and place of the host pool: the copy that uses it."""

    # ---- batches --------------------------------------------------------------------------------

    @property
    def processed_count(self) -> int:
        """Return how many steps are processed once the open batch is decided."""
        return self.batch.processed[-1] if self.batch.processed else self.model.processed_count

    @property
    def recorded_count(self) -> int:
        """Return how many steps are recorded."""
        return self.launched_count - self.launching

    def ask(self, ask: Ask) -> None:
        """Add an operation to the open batch."""
        self.batch.asks.append(ask)

    def send(self, *, misused: bool = False) -> None:
        """Send the open batch; without overlap no launch is open then."""
        if self.launching and not self.overlap:
            self.close_launch()
        batch, self.batch = self.batch, OpenBatch()
        part = SendBatch(batch.asks, processed=batch.processed, fills=batch.fills, misused=misused)
        self._carry(part)
        self.idle = batch.idles
        self.has_notices = False

    def send_if(self, due: bool) -> None:
        """Send the open batch if there is a reason to."""
        if due:
            self.send()

    @property
    def has_asked(self) -> bool:
        """Return whether the open batch holds anything."""
        return bool(self.batch.asks or self.batch.processed)

    def touch(self, kind: str, numbers: Iterable[int], how: Touch) -> None:
        """Take note of what the open batch does to somebody."""
        for number in numbers:
            self.batch.touched[kind, number] = how

    def is_free_for(self, kind: str, number: int, how: Touch) -> bool:
        """Return whether the open batch may do this to somebody beside what it does already."""
        before = self.batch.touched.get((kind, number))
        return before is None or (before is Touch.GROWS and how is Touch.GROWS)

    def calm(self, kind: str, numbers: Iterable[int], how: Touch) -> bool:
        """Have the open batch sent if it touches somebody otherwise; return whether it was."""
        if all(self.is_free_for(kind, number, how) for number in numbers):
            return False
        self.send()
        return True

    # ---- launches -------------------------------------------------------------------------------

    def open_launch(self, launch: OpenLaunch) -> None:
        """Begin a forward; whatever has to come before it does."""
        self._carry(launch)
        self.launched_count = launch.step
        self.has_notices = True
        if launch.writes is None:
            self.model.unknown_step = launch.step
        self.launching = True

    def prepare_launch(self) -> None:
        """See to it that a launch may begin."""
        if self.launching:
            self.close_launch()
        in_flight = self.launched_count - self.processed_count
        if in_flight >= (STEPS_IN_FLIGHT_MAX if self.overlap else 1):
            self.process(1)
        sent_count = self.launched_count - self.model.processed_count
        self.send_if(
            self.batch.idles
            or self.batch.names_units
            or sent_count >= (STEPS_IN_FLIGHT_MAX if self.overlap else 1)
        )
        self.send_if(self.idle)

    def close_launch(self, *, aborts: bool = False) -> None:
        """End the open launch."""
        if aborts:
            self.model.unknown_step = self.launched_count
        self._carry(CloseLaunch(aborts))
        self.launching = False

    def process(self, count: int) -> int:
        """Notice that the oldest forwards are over; return how many."""
        first = self.processed_count + 1
        end = min(first + count, self.recorded_count + 1)
        self.batch.processed.extend(range(first, end))
        return max(0, end - first)

    # ---- who may do what ------------------------------------------------------------------------

    def pick(self, those: Sequence[T], index: int, count: int = 1) -> list[T]:
        """Return up to ``count`` of those, from a place modulo how many there are."""
        if not those:
            return []
        start = index % len(those)
        ordered = [*those[start:], *those[:start]]
        return ordered[: min(count, len(those))]

    def running(self) -> list[Request]:
        """Return all requests, oldest first."""
        return list(self.model.requests.values())

    def may_run(self, request: Request) -> bool:
        """Return whether a forward may read and write a request: no peer is at work on it."""
        return (
            request.tokens > 0
            and not request.is_others
            and not any(transfer.published for transfer in request.transfers.values())
        )

    def may_end(self, owner: Request | Value) -> bool:
        """Return whether no peer writes somebody, or is to."""
        return not any(transfer.receives for transfer in owner.transfers.values())

    def has_network_streams(self, virtual: Sequence[Indices]) -> bool:
        """Return whether ranks have streams for another transfer, of these units per band."""
        most = self.limits.network_stream_count_max
        if most is None:
            return True
        model = self.model
        transfers = [*model.transfers.values(), *model.proposed_transfers.values()]
        all_virtual = [virtual, *[transfer.virtual for transfer in transfers]]
        return sum(ids.size > 0 for per_band in all_virtual for ids in per_band) <= most

    def may_be_told(self, owner: Request | Value) -> bool:
        """Return whether no forward in flight reads or writes somebody, as far as is stated."""
        return owner.step <= self.processed_count

    def victims(self, count: int, first_index: int, *, but: Iterable[int] = ()) -> list[int]:
        """Return running requests that may be retracted."""
        kept = dict.fromkeys(but)
        fitting = [
            request.number
            for request in self.running()
            if request.number not in kept
            and not request.transfers
            and self.is_free_for("request", request.number, Touch.CHANGES)
        ]
        return self.pick(fitting, first_index, count) if count else []

    def pick_one(self, those: Sequence[T], index: int) -> T | None:
        """Return the one at a place modulo how many there are; None if there is none."""
        return those[index % len(those)] if those else None

    # ---- host pools -----------------------------------------------------------------------------

    def take_places(self, copy: int, band_index: int, count: int) -> Indices | None:
        """Return free places of a band's host pool for a copy; None if there are too few."""
        used = self.used_places.setdefault(band_index, {})
        copies = self.model.copies
        for place, user in list(used.items()):
            if user not in copies and user not in self.model.proposed_copies:
                del used[place]
        free = [place for place in range(POOL_PLACES_COUNT) if place not in used][:count]
        if len(free) < count:
            return None
        used.update(dict.fromkeys(free, copy))
        return np.array(free, dtype=np.int64)
