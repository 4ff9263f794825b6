"""How full an arena gets before the first request is refused, without a daemon or any memory.

Requests of a trace arrive in order. Each is admitted with its whole length, then takes all of it,
prompt and answer, chunk by chunk; none ends. The trace starts anew when it is over, until a request
is refused. What was promised, taken and asked by then is compared with the bytes there are, and the
same requests are laid out the way other designs would: a fixed share for every band, chosen with
hindsight for this trace or by default, and equal pages of the least common multiple of all units.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

import numpy as np

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage, build_group
from kvd.engine.stage import StageEngine
from kvd.errors import WorkloadError
from kvd.presets import preset_config, preset_names
from kvd.testing.bench_figures import Figure
from kvd.testing.traces import Trace, TraceRequest
from kvd.units import ceil_div
from kvd_proto.memory import BandPlan, DeclaredConfig, Lifetime, SizingInputs
from kvd_proto.operations import Admit, Advance, BatchEnd, Free, Take
from kvd_proto.outcomes import AdmitResult, Outcome, Refusal, Verdict

GiB: Final = 1 << 30
UNCLAIMED_PERCENT_MAX: Final = 1.0
"""A request may be refused once live, promised and asked bytes leave no more than this."""
REQUESTS_MAX: Final = 1 << 20
"""Requests after which a run that never refuses is given up."""
ROWS_PER_ARENA_COUNT: Final = 1 << 14
STATE_SHARE: Final = 64.0
"""States are sized to take almost everything: rows for requests must not be what runs out."""
DEFAULT_STATE_SHARE: Final = 0.9
"""State bytes per byte of the token bands in the default static split: SGLang's default."""
DEFAULT_WINDOW_SHARE: Final = 0.8
"""Tokens of a window band per token of full attention in the default split: SGLang's default."""
PROGRAM: Final = 0
RIVALS: Final = ("static_hindsight", "static_default", "lcm_pages")
"""The other designs that the same requests are laid out in."""

Counts = tuple[int, ...]
"""One number per band, chain order."""


@dataclass(frozen=True, slots=True)
class CapacitySpec:
    """One cell of the comparison."""

    trace: Trace
    preset: str
    budget_bytes: int
    page_tokens: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request asks for at first, holds when grown, and keeps promised beside that."""

    asked_units: Counts
    held_units: Counts
    promised_units: Counts

    @property
    def kept_units(self) -> Counts:
        """Return what nobody else can have once the request has grown."""
        return tuple(a + b for a, b in zip(self.held_units, self.promised_units, strict=True))


@dataclass(frozen=True, slots=True)
class Fill:
    """How far one design got: requests admitted, and the bytes of their grown pages and slots."""

    admitted_count: int
    held_bytes: int


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
    live_bytes: int
    promised_bytes: int
    asked_bytes: int
    rivals: dict[str, Fill]
    """The same requests in other designs."""

    @property
    def claimed_percent(self) -> float:
        """Return live, promised and asked bytes at the first refusal, of those there are."""
        claimed_bytes = self.live_bytes + self.promised_bytes + self.asked_bytes
        return 100 * claimed_bytes / self.usable_bytes

    @property
    def useful_percent(self) -> float:
        """Return the bytes of live pages and slots at the first refusal."""
        return 100 * self.live_bytes / self.usable_bytes

    def rival_percent(self, name: str) -> float:
        """Return the same for another design."""
        return 100 * self.rivals[name].held_bytes / self.usable_bytes

    @property
    def name(self) -> str:
        """Return what figures of this cell begin with."""
        trace = self.spec.trace.name.partition(".")[0]
        return f"{trace}_{self.spec.preset}_{self.spec.budget_bytes / GiB:g}GiB"

    def figures(self) -> list[Figure]:
        """Return the cell as figures; lower is better where there is a target."""
        found = [
            Figure(
                f"{self.name}_unclaimed", 100 - self.claimed_percent, "%", UNCLAIMED_PERCENT_MAX
            ),
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

    Raises WorkloadError for a model with one band, if nothing fits and if nothing is ever refused.
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
    costs = _Costs(storage)
    filler = _Filler(storage)
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
        filler.grow(request)
    assert refused is not None
    unit_bytes = tuple(band.unit_bytes for band in bands)
    live, promised = filler.counts()
    return CapacityRun(
        spec=spec,
        usable_bytes=usable_bytes,
        unit_bytes=unit_bytes,
        admitted_count=filler.admitted_count,
        never_count=never_count,
        reason=reason,
        live_bytes=_bytes(live, unit_bytes),
        promised_bytes=_bytes(promised, unit_bytes),
        asked_bytes=_bytes(refused.asked_units, unit_bytes),
        rivals=_rivals(spec.trace, costs, bands, usable_bytes),
    )


# ---- kvd --------------------------------------------------------------------------------------


class _Filler:
    """One stage's engine, driven as a program without forwards would."""

    def __init__(self, storage: StageStorage) -> None:
        self._engine = StageEngine(storage, level=CheckLevel.WARN)
        self._chunk_tokens = storage.sized.chunk_tokens
        self._request = 0
        self.admitted_count = 0

    def admit(self, request: TraceRequest) -> str:
        """Admit a request with its whole length; return why not, or an empty text."""
        self._request += 1
        outcome = self._engine.decide(
            PROGRAM,
            Admit(
                _ids(self._request),
                _tokens(request.prompt_tokens),
                _tokens(request.output_tokens),
            ),
        )
        result = outcome.result
        assert isinstance(result, AdmitResult)
        verdict = Verdict(_first_of_column(outcome, result.verdicts))
        self._end_batch()
        if verdict is Verdict.FITS:
            self.admitted_count += 1
            return ""
        return f"{verdict.name}: {result.refusals[0].reason.value}"

    def grow(self, request: TraceRequest) -> None:
        """Take the whole length of the newest request, chunk by chunk."""
        left_tokens = request.total_tokens
        while left_tokens:
            # A prompt's last chunk ends with the prompt, as it does where its first token is drawn.
            prompt_left = left_tokens - request.output_tokens
            tokens = min(self._chunk_tokens, prompt_left if prompt_left > 0 else left_tokens)
            taken = self._engine.decide(PROGRAM, Take(_ids(self._request), tokens)).result
            if isinstance(taken, Refusal):
                raise WorkloadError(
                    f"request {request.line_index} was admitted and refused {tokens} of its "
                    f"tokens: {taken.reason.value}"
                )
            self._engine.decide(PROGRAM, Advance(_ids(self._request), tokens))
            self._end_batch()
            left_tokens -= tokens

    def free(self) -> None:
        """End the newest request."""
        self._engine.decide(PROGRAM, Free(_ids(self._request)))
        self._end_batch()

    def counts(self) -> tuple[Counts, Counts]:
        """Return live and promised units per band."""
        statistics = self._engine.chain.statistics()
        return (
            tuple(band.live_units for band in statistics),
            tuple(band.promised_units for band in statistics),
        )

    def _end_batch(self) -> None:
        self._engine.decide(PROGRAM, BatchEnd())
        self._engine.settle()


class _Costs:
    """What requests of every length cost, found by having an empty stage admit and grow them."""

    def __init__(self, storage: StageStorage) -> None:
        self._filler = _Filler(storage)
        self._known: dict[tuple[int, int], Cost | None] = {}

    def of(self, request: TraceRequest) -> Cost | None:
        """Return a request's cost, None if it fits no empty arena."""
        key = (request.prompt_tokens, request.output_tokens)
        if key not in self._known:
            self._known[key] = self._measure(request)
        return self._known[key]

    def _measure(self, request: TraceRequest) -> Cost | None:
        filler = self._filler
        if filler.admit(request):
            return None
        _, asked = filler.counts()
        filler.grow(request)
        held, promised = filler.counts()
        filler.free()
        return Cost(asked, held, promised)


# ---- other designs ----------------------------------------------------------------------------


def _rivals(
    trace: Trace, costs: _Costs, bands: Sequence[BandPlan], usable_bytes: int
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
    inputs = SizingInputs(
        budget_bytes=budget_bytes,
        page_tokens=page_tokens,
        context_tokens=context_tokens,
        running_requests_count=ROWS_PER_ARENA_COUNT,
        state_share=STATE_SHARE,
        cached_slots=0,
    )
    return build_group(declaration, inputs=inputs).stages[0]


def _arrivals(trace: Trace) -> Iterator[TraceRequest]:
    """Yield the trace over and over; raises WorkloadError when it never ends."""
    for count, request in enumerate(cycle(trace.requests)):
        if count == REQUESTS_MAX:
            raise WorkloadError(f"{REQUESTS_MAX} requests of {trace.name} and none was refused")
        yield request


def _bytes(units: Counts, unit_bytes: Counts) -> int:
    return sum(count * size for count, size in zip(units, unit_bytes, strict=True))


def _first_of_column(outcome: Outcome, index: int) -> int:
    return int(np.frombuffer(outcome.columns, dtype="<i4")[sum(outcome.lengths[:index])])


def _ids(request: int) -> bytes:
    return request.to_bytes(8, "little")


def _tokens(count: int) -> bytes:
    return count.to_bytes(4, "little")
