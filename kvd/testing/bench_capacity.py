"""How full an arena gets before the first request is refused, without a daemon or any memory.

Requests of a trace arrive in order. Each is admitted with its whole length and takes its prompt,
chunk by chunk; none ends. The trace starts anew when it is over, until a request is refused. What
was promised, taken and asked by then is compared with the bytes there are. Then all that were
admitted decode their answers to the end, a token per step and all in one step, which shows that
every promise is kept; what they hold after it is the useful share.

The same requests are laid out the way other designs would: a fixed share for every band, chosen
with hindsight for this trace or by default, and equal pages of the least common multiple of all
units.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from kvd.build import StageStorage, build_group
from kvd.errors import WorkloadError
from kvd.presets import preset_config, preset_names
from kvd.testing.bench_figures import Figure
from kvd.testing.bench_fill import Costs, Counts, Filler
from kvd.testing.traces import Trace, TraceRequest
from kvd.units import ceil_div
from kvd_proto.memory import BandPlan, DeclaredConfig, Lifetime, SizingInputs
from kvd_proto.outcomes import Reason

GiB: Final = 1 << 30
UNCLAIMED_PERCENT_MAX: Final = 1.0
"""A request may be refused once live, promised and asked bytes leave no more than this."""
REQUESTS_MAX: Final = 1 << 20
"""Requests after which a run that never refuses is given up."""
ROWS_PER_ARENA_COUNT: Final = 1 << 14
STATE_SHARES: Final = (64.0, 16.0, 4.0, 1.0)
"""State bytes per byte of the other bands to size with; the one that gives most rows is used.

Mostly that is where states take almost everything. In a small arena too few pages are then left.
"""
DEFAULT_STATE_SHARE: Final = 0.9
"""State bytes per byte of the token bands in the default static split: SGLang's default."""
DEFAULT_WINDOW_SHARE: Final = 0.8
"""Tokens of a window band per token of full attention in the default split: SGLang's default."""
RIVALS: Final = ("static_hindsight", "static_default", "lcm_pages")
"""The other designs that the same requests are laid out in."""


@dataclass(frozen=True, slots=True)
class CapacitySpec:
    """One cell of the comparison."""

    trace: Trace
    preset: str
    budget_bytes: int
    page_tokens: int

    @property
    def name(self) -> str:
        """Return what figures of this cell begin with."""
        trace = self.trace.name.partition(".")[0]
        return f"{trace}_{self.preset}_{self.budget_bytes / GiB:g}GiB"


@dataclass(frozen=True, slots=True)
class Fill:
    """How far one design got: requests admitted, and the bytes of their grown pages and slots."""

    admitted_count: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class CapacityFailure:
    """A cell that could not be measured, and why."""

    spec: CapacitySpec
    message: str

    def fields(self) -> dict[str, object]:
        """Return the cell as the benchmark document holds it."""
        return {
            "trace": self.spec.trace.name,
            "model": self.spec.preset,
            "budget_bytes": self.spec.budget_bytes,
            "page_tokens": self.spec.page_tokens,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class CapacityRun:
    """What came of one cell."""

    spec: CapacitySpec
    usable_bytes: int
    """The arena without its sink."""
    unit_bytes: Counts
    admitted_count: int
    never_count: int
    """Requests skipped because they fit no empty arena."""
    reason: str
    """Why the first refused request was refused."""
    claimed_bytes: int
    """Live, promised and asked at the first refusal."""
    live_bytes: int
    """Live once all admitted requests have their whole answers, as are the promised ones left."""
    promised_bytes: int
    asked_bytes: int
    rivals: dict[str, Fill]
    """The same requests in other designs."""

    @property
    def claimed_percent(self) -> float:
        """Return live, promised and asked bytes at the first refusal, of those there are."""
        return 100 * self.claimed_bytes / self.usable_bytes

    @property
    def useful_percent(self) -> float:
        """Return the bytes of live pages and slots of the admitted requests with their answers."""
        return 100 * self.live_bytes / self.usable_bytes

    def rival_percent(self, name: str) -> float:
        """Return the same for another design."""
        return 100 * self.rivals[name].held_bytes / self.usable_bytes

    @property
    def lacks_rows(self) -> bool:
        """Return whether rows ran out, which says nothing about bytes."""
        return self.reason.endswith(Reason.NO_ROWS.value)

    @property
    def name(self) -> str:
        """Return what figures of this cell begin with."""
        return self.spec.name

    def figures(self) -> list[Figure]:
        """Return the cell as figures; lower is better where there is a target."""
        # Without a row for it a request is refused whatever bytes there are.
        target = None if self.lacks_rows else UNCLAIMED_PERCENT_MAX
        found = [
            Figure(f"{self.name}_unclaimed", 100 - self.claimed_percent, "%", target),
            Figure(f"{self.name}_useful", self.useful_percent, "%"),
        ]
        found += [
            Figure(f"{self.name}_useful_{rival}", self.rival_percent(rival), "%")
            for rival in self.rivals
        ]
        return [*found, Figure(f"{self.name}_requests", float(self.admitted_count), "requests")]

    def fields(self) -> dict[str, object]:
        """Return the cell as the benchmark document holds it."""
        return {
            "trace": self.spec.trace.name,
            "model": self.spec.preset,
            "budget_bytes": self.spec.budget_bytes,
            "page_tokens": self.spec.page_tokens,
            "usable_bytes": self.usable_bytes,
            "unit_bytes": list(self.unit_bytes),
            "requests": self.admitted_count,
            "never": self.never_count,
            "reason": self.reason,
            "claimed_bytes": self.claimed_bytes,
            "live_bytes": self.live_bytes,
            "promised_bytes": self.promised_bytes,
            "asked_bytes": self.asked_bytes,
            "rivals": {
                name: {"requests": fill.admitted_count, "live_bytes": fill.held_bytes}
                for name, fill in self.rivals.items()
            },
        }


def shared_presets() -> tuple[str, ...]:
    """Return the presets whose models have bands that could trade bytes."""
    return tuple(
        name
        for name in preset_names()
        if len(_storage(name, budget_bytes=40 * GiB).storage.bands) > 1
    )


def measure_capacity(spec: CapacitySpec) -> CapacityRun:
    """Fill an arena until a request is refused, and lay the same requests out otherwise.

    Raises WorkloadError for a model with one band, if nothing fits, if nothing is ever refused and
    if tokens that were promised are refused.
    """
    context_tokens = max(request.total_tokens for request in spec.trace.requests)
    storage = _storage(
        spec.preset,
        budget_bytes=spec.budget_bytes,
        page_tokens=spec.page_tokens,
        context_tokens=context_tokens,
    )
    bands = storage.storage.bands
    if len(bands) < 2:
        raise WorkloadError(f"{spec.preset} has one band: nothing is shared there")
    usable_bytes = storage.storage.arena_bytes - storage.storage.sink_bytes
    costs = Costs(storage)
    filler = Filler(storage)
    never_count = 0
    reason, refused = "", None
    for request in _arrivals(spec.trace):
        cost = costs.of(request)
        if cost is None:
            never_count += 1
            if never_count == len(spec.trace.requests) and not filler.admitted_count:
                raise WorkloadError(
                    f"no request of {spec.trace.name} fits {spec.preset} in {spec.budget_bytes} "
                    "bytes, however empty the arena is"
                )
            continue
        reason = filler.admit(request)
        if reason:
            refused = cost
            break
        filler.prefill(request)
    assert refused is not None
    unit_bytes = tuple(band.unit_bytes for band in bands)
    claimed_bytes = _bytes(refused.asked_units, unit_bytes) + sum(
        _bytes(units, unit_bytes) for units in filler.counts()
    )
    filler.decode_all()
    live, promised = filler.counts()
    return CapacityRun(
        spec=spec,
        usable_bytes=usable_bytes,
        unit_bytes=unit_bytes,
        admitted_count=filler.admitted_count,
        never_count=never_count,
        reason=reason,
        claimed_bytes=claimed_bytes,
        live_bytes=_bytes(live, unit_bytes),
        promised_bytes=_bytes(promised, unit_bytes),
        asked_bytes=_bytes(refused.asked_units, unit_bytes),
        rivals=_rivals(spec.trace, costs, bands, usable_bytes),
    )


# ---- other designs ----------------------------------------------------------------------------


def _rivals(
    trace: Trace, costs: Costs, bands: Sequence[BandPlan], usable_bytes: int
) -> dict[str, Fill]:
    """Lay the trace's requests out as other designs would, with the same promises kept."""
    unit_bytes = tuple(band.unit_bytes for band in bands)
    tests = _tests(bands, unit_bytes, usable_bytes)
    fills: dict[str, Fill] = {}
    kept = peak = (0,) * len(bands)
    admitted_count = held_bytes = 0
    for request in _arrivals(trace):
        cost = costs.of(request)
        if cost is None:
            continue
        peak = tuple(
            max(most, now + asked)
            for most, now, asked in zip(peak, kept, cost.asked_units, strict=True)
        )
        for name, fits in tests.items():
            if name not in fills and not fits(peak):
                fills[name] = Fill(admitted_count, held_bytes)
        if len(fills) == len(tests):
            break
        kept = tuple(a + b for a, b in zip(kept, cost.kept_units, strict=True))
        admitted_count += 1
        held_bytes += _bytes(cost.held_units, unit_bytes)
    return {name: fills[name] for name in tests}


def _tests(
    bands: Sequence[BandPlan], unit_bytes: Counts, usable_bytes: int
) -> dict[str, Callable[[Counts], bool]]:
    """Return, by design, whether it holds so many units of every band.

    Peaks only rise, so the split that would hold the first requests is the one their peaks ask for:
    with hindsight it fits as long as their bytes do.
    """
    default_units = _default_split(bands, usable_bytes)
    large_bytes = math.lcm(*unit_bytes)
    large_count = usable_bytes // large_bytes

    def hindsight(peak: Counts) -> bool:
        return _bytes(peak, unit_bytes) <= usable_bytes

    def default(peak: Counts) -> bool:
        return all(units <= room for units, room in zip(peak, default_units, strict=True))

    def lcm_pages(peak: Counts) -> bool:
        parts = zip(peak, unit_bytes, strict=True)
        return sum(ceil_div(units, large_bytes // size) for units, size in parts) <= large_count

    return dict(zip(RIVALS, (hindsight, default, lcm_pages), strict=True))


def _default_split(bands: Sequence[BandPlan], usable_bytes: int) -> Counts:
    """Return each band's units where its share of the bytes is fixed by the usual ratios."""
    has_state = any(band.lifetime is Lifetime.STATE for band in bands)
    state_bytes = usable_bytes * DEFAULT_STATE_SHARE / (1 + DEFAULT_STATE_SHARE) if has_state else 0
    weights = [
        0.0
        if band.lifetime is Lifetime.STATE
        else band.unit_bytes * (1.0 if band.lifetime is Lifetime.FULL else DEFAULT_WINDOW_SHARE)
        for band in bands
    ]
    return tuple(
        int(
            (
                state_bytes
                if band.lifetime is Lifetime.STATE
                else (usable_bytes - state_bytes) * weight / sum(weights)
            )
            // band.unit_bytes
        )
        for band, weight in zip(bands, weights, strict=True)
    )


# ---- inside -----------------------------------------------------------------------------------


def _storage(
    preset: str, *, budget_bytes: int, page_tokens: int = 64, context_tokens: int = 1 << 17
) -> StageStorage:
    """Return a stage whose request rows and slots are not what runs out first."""
    declaration = DeclaredConfig(config_json=preset_config(preset), name=preset)
    sized = [
        build_group(
            declaration,
            inputs=SizingInputs(
                budget_bytes=budget_bytes,
                page_tokens=page_tokens,
                context_tokens=context_tokens,
                running_requests_count=ROWS_PER_ARENA_COUNT,
                state_share=state_share,
                cached_slots=0,
            ),
        ).stages[0]
        for state_share in STATE_SHARES
    ]
    return max(sized, key=lambda storage: storage.sized.running_requests_count)


def _arrivals(trace: Trace) -> Iterator[TraceRequest]:
    """Yield the trace over and over; raises WorkloadError when it never ends."""
    for count, request in enumerate(cycle(trace.requests)):
        if count == REQUESTS_MAX:
            raise WorkloadError(f"{REQUESTS_MAX} requests of {trace.name} and none was refused")
        yield request


def _bytes(units: Counts, unit_bytes: Counts) -> int:
    return sum(count * size for count, size in zip(units, unit_bytes, strict=True))
