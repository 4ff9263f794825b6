"""What applying a decode step costs the host: the part of Python, and that of the driver.

The replies are those of the benchmark `core`, of a step each. ``tight`` is the best of the
repeats, one reply after the other; ``paced`` waits until the device is done with each, as an engine
does, and so begins each on colder caches. The driver's calls are timed in a run of their own,
because timing them costs something; what is left of the best repeat is Python.

The device ``idle`` is the CUDA device on a driver that does nothing, which runs anywhere.
"""

import gc
import os
from collections import Counter
from collections.abc import Callable, Sequence
from cProfile import Profile
from dataclasses import dataclass
from pathlib import PurePath
from time import perf_counter_ns
from typing import Final, NamedTuple

import numpy as np

from kvd.testing.bench_core import Recording, record, replies
from kvd.testing.bench_drivers import IdleDriver, TimedDriver
from kvd.testing.bench_figures import NS_PER_US, REPEAT_COUNT, Figure, Times, percentile_us
from kvd_client.device.apply import Applier
from kvd_client.device.columns import Columns, decode_columns
from kvd_client.device.cuda.device import CudaDevice, cuda_device
from kvd_client.device.descriptors import create_memory
from kvd_client.device.fences import FencePage, create_fence_page
from kvd_client.device.host.device import host_device
from kvd_client.device.port import Device, Memory, Stream
from kvd_proto.codec import decode_reply
from kvd_proto.outcomes import Outcome

APPLY_US_MAX: Final = 40.0
FULL_SIZE_COUNT: Final = 256
DRAIN_STEPS: Final = 32
DEADLINE_MS: Final = 60_000
PROFILES_COUNT: Final = 20
NOTHINGS_COUNT: Final = 100_000
US_PER_S: Final = 1e6
DEVICES: Final[dict[str, Callable[[], Device]]] = {
    "cuda": cuda_device,
    "host": host_device,
    "idle": lambda: CudaDevice(IdleDriver().driver),
}


class ProfiledRow(NamedTuple):
    """What one function takes of a decode step."""

    function: str
    calls: float
    """Calls a step."""
    self_us: float
    """Microseconds a step in the function itself and in what it calls that is not Python."""


class _Applied(NamedTuple):
    """Nanoseconds of each step: all of it, and the part that gives work to the device."""

    whole: Times
    enqueued: Times
    in_driver: Times


@dataclass(frozen=True, slots=True)
class _Place:
    """A device with memory on it and a stream."""

    device: Device
    memory: Memory
    stream: Stream
    fences: FencePage
    timed: TimedDriver | None

    def close(self) -> None:
        """Give everything back."""
        self.stream.close(DEADLINE_MS)
        self.fences.close()
        self.memory.close()


class ApplyBench:
    """The decode steps of one recording, and a device to apply them on."""

    def __init__(
        self,
        device_name: str,
        *,
        requests_count: int,
        page_tokens: int,
        steps_count: int,
        seed_index: int,
    ) -> None:
        """Record the steps; raises DeviceError if the device is not there."""
        self.name = f"{device_name}_page{page_tokens}_apply"
        self.has_target = (
            device_name == "cuda" and requests_count == FULL_SIZE_COUNT and page_tokens > 1
        )
        self._device = DEVICES[device_name]()
        self._recording: Recording = record(
            requests_count=requests_count,
            page_tokens=page_tokens,
            steps_count=steps_count,
            seed_index=seed_index,
        )
        self._steps = [
            tuple(entry.outcome for entry in decode_reply(reply).entries)
            for reply in replies(self._recording)
        ]

    def measure(self) -> list[Figure]:
        """Return what the effects of a step cost: checked, assembled and enqueued."""
        place = self._open(self._device, None)
        try:
            tight = [self._apply(place, drain_steps=DRAIN_STEPS) for _ in range(REPEAT_COUNT)]
            paced = self._apply(place, drain_steps=1)
        finally:
            place.close()
        best = min(tight, key=lambda one: percentile_us(one.whole, 50))
        figures: list[Figure] = []
        for pace, one in (("tight", best), ("paced", paced)):
            target = APPLY_US_MAX if self.has_target and pace == "tight" else None
            name = f"{self.name}_{pace}"
            figures += [
                Figure(f"{name}_p50", percentile_us(one.whole, 50), "us", target),
                Figure(f"{name}_p99", percentile_us(one.whole, 99), "us"),
                Figure(f"{name}_enqueue_p50", percentile_us(one.enqueued, 50), "us"),
            ]
        figures += self._parts(percentile_us(best.whole, 50))
        return [*figures, Figure(f"{self.name}_samples", float(len(best.whole)), "steps")]

    def profile(self) -> list[ProfiledRow]:
        """Return where the time of the most frequent kind of step goes, dearest first.

        What profiling costs itself is taken off, as measured on a function that does nothing. Time
        in the driver is the time of what calls it.
        """
        measured = self._steps[self._recording.setup_count :]
        ((usual, _),) = Counter(map(_kind_of, measured)).most_common(1)
        steps = [(step, decode_columns(step)) for step in measured if _kind_of(step) == usual]
        place = self._open(self._device, None)
        profiles: list[Profile] = []
        try:
            applier = self._new_applier(place)
            _apply_all(applier, steps)
            for _ in range(PROFILES_COUNT):
                profiles.append(Profile(builtins=False))
                # All at once: a profiler is slow to begin.
                profiles[-1].runcall(_apply_all, applier, steps)
                place.stream.synchronize(DEADLINE_MS)
        finally:
            place.close()
        rows: dict[str, ProfiledRow] = {}
        costs_s = _profiling_costs()
        for profile in profiles:
            for row in _rows(profile, len(steps), costs_s):
                known = rows.get(row.function)
                # The least of each: anything else may have come in between.
                rows[row.function] = row if known is None else min(row, known, key=_self_us)
        return sorted(rows.values(), key=_self_us, reverse=True)

    def _parts(self, whole_us: float) -> list[Figure]:
        """Return what of a step is the driver, call by call, and what is Python."""
        if not isinstance(self._device, CudaDevice):
            return []
        timed = TimedDriver(self._device.driver)
        place = self._open(CudaDevice(timed.driver), timed)
        try:
            runs = [self._apply(place, drain_steps=DRAIN_STEPS) for _ in range(REPEAT_COUNT)]
        finally:
            place.close()
        driver_us = min(percentile_us(one.in_driver, 50) for one in runs)
        return [
            Figure(f"{self.name}_driver_p50", driver_us, "us"),
            Figure(f"{self.name}_python_p50", whole_us - driver_us, "us"),
        ]

    def _open(self, device: Device, timed: TimedDriver | None) -> _Place:
        size_bytes = self._recording.storage.storage.total_bytes
        descriptor = create_fence_page("kvd-bench-fence")
        fences = FencePage(descriptor)
        os.close(descriptor)
        if device.gpu_uuid:
            from kvd_client.device.cuda.arena import create_arena

            descriptor = create_arena(device.gpu_uuid, size_bytes)
        else:
            descriptor = create_memory("kvd-bench", size_bytes)
        memory = device.map(descriptor, size_bytes)
        os.close(descriptor)
        return _Place(device, memory, device.stream("bench", fences.lane(0)), fences, timed)

    def _new_applier(self, place: _Place) -> Applier:
        plan = self._recording.storage.storage
        applier = Applier(device=place.device, memory=place.memory, plan=plan, stream=place.stream)
        applier.clear()
        applier.prewarm()
        return applier

    def _apply(self, place: _Place, *, drain_steps: int) -> _Applied:
        """Apply all replies from the first on; the device is waited for after every so many."""
        applier = self._new_applier(place)
        times: list[tuple[int, int, int]] = []
        timed = place.timed
        gc.collect()
        gc.freeze()
        for number, outcomes in enumerate(self._steps):
            # Decoded by the client before, for the results; cleared by the forward, later.
            columns = decode_columns(outcomes)
            applier.take_launch_work()
            # As many steps as batches at most were launched before, in this stream's order.
            applier.note_ordered_step(number + 1)
            if timed is not None:
                timed.clear()
            started_ns = perf_counter_ns()
            checked = applier.assemble_reply(applier.applied + 1, outcomes, columns)
            assembled_ns = perf_counter_ns()
            applier.enqueue_reply(checked)
            ended_ns = perf_counter_ns()
            driver_ns = 0 if timed is None else sum(timed.spent_ns.values())
            times.append((ended_ns - started_ns, ended_ns - assembled_ns, driver_ns))
            if number % drain_steps == 0:
                place.stream.synchronize(DEADLINE_MS)
        whole, enqueued, in_driver = np.array(
            times[self._recording.setup_count :], dtype=np.int64
        ).T
        return _Applied(whole, enqueued, in_driver)


def _kind_of(outcomes: Sequence[Outcome]) -> tuple[object, ...]:
    """Return what makes two steps the same but for their numbers."""
    return tuple((type(one.result), len(one.segments), len(one.lengths)) for one in outcomes)


def _apply_all(
    applier: Applier, steps: Sequence[tuple[Sequence[Outcome], Sequence[Columns]]]
) -> None:
    applier.note_ordered_step(1 << 62)
    for outcomes, columns in steps:
        applier.enqueue_reply(applier.assemble_reply(applier.applied + 1, outcomes, columns))


def _self_us(row: ProfiledRow) -> float:
    return row.self_us


def _rows(profile: Profile, steps_count: int, costs_s: tuple[float, float]) -> list[ProfiledRow]:
    called_s, calling_s = costs_s
    rows: list[ProfiledRow] = []
    for entry in profile.getstats():
        code = entry.code
        if isinstance(code, str):
            continue
        below = sum(one.callcount for one in entry.calls or ())
        self_s = entry.inlinetime - entry.callcount * called_s - below * calling_s
        rows.append(
            ProfiledRow(
                f"{PurePath(code.co_filename).stem}.{code.co_qualname}",
                entry.callcount / steps_count,
                max(0.0, self_s * US_PER_S / steps_count),
            )
        )
    return rows


def _profiling_costs() -> tuple[float, float]:
    """Return what profiling adds to a function for each call of it, and for each that it makes."""

    def nothing() -> None:
        pass

    def many() -> None:
        for _ in range(NOTHINGS_COUNT):
            nothing()

    started_ns = perf_counter_ns()
    many()
    bare_s = (perf_counter_ns() - started_ns) / NS_PER_US / US_PER_S
    profile = Profile(builtins=False)
    profile.runcall(many)
    inline_s = {entry.code: entry.inlinetime for entry in profile.getstats()}
    called_s = inline_s[nothing.__code__] / NOTHINGS_COUNT
    calling_s = (inline_s[many.__code__] - bare_s) / NOTHINGS_COUNT
    return called_s, max(0.0, calling_s)
