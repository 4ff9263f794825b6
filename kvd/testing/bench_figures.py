"""What benchmarks report: figures with a unit and, where there is one, a target."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
"""Durations in nanoseconds."""

NS_PER_US: Final = 1_000
CALLS_COUNT: Final = 300
"""Calls of one repeat, where a single call is measured."""
REPEAT_COUNT: Final = 5
"""How often a measurement is repeated; targets are compared with the best repeat."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; lower is better."""

    name: str
    value: float
    unit: str
    target: float | None = None

    @property
    def ok(self) -> bool | None:
        """Return whether the target is met; None without one."""
        return None if self.target is None else self.value <= self.target

    def fields(self) -> dict[str, object]:
        """Return the figure as the benchmark document holds it."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": self.target,
            "ok": self.ok,
        }


def percentile_us(times: Times, percent: float) -> float:
    """Return a percentile of durations, in microseconds."""
    return float(np.percentile(times, percent)) / NS_PER_US


def best_us(call: Callable[[], object]) -> float:
    """Return the smallest of the repeats' medians of one call, in microseconds."""
    medians: list[float] = []
    for _ in range(REPEAT_COUNT):
        times: list[int] = []
        for _ in range(CALLS_COUNT):
            started_ns = perf_counter_ns()
            call()
            times.append(perf_counter_ns() - started_ns)
        medians.append(percentile_us(np.array(times, dtype=np.int64), 50))
    return min(medians)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A subject and an echo measured in turns: block ``i`` of one ran just before the other's.

    Blocks belong to repeats in the order of measuring, as evenly as their number allows.
    """

    subject: tuple[Times, ...]
    echo: tuple[Times, ...]

    def __post_init__(self) -> None:
        assert len(self.subject) == len(self.echo) > 0

    def figures(self, name: str, *, p50_max: float | None, p99_max: float | None) -> list[Figure]:
        """Return both sides' percentiles, their ratios and how far the blocks' ratios spread.

        ``ratio_p50`` is that of the repeat with the fastest subject, with the echo of the same
        repeat; ``ratio_p50_pooled`` and ``ratio_p99`` are over all blocks.
        """
        figures: list[Figure] = []
        sides = {"batch": np.concatenate(self.subject), "echo": np.concatenate(self.echo)}
        for side, times in sides.items():
            for percent in (50, 99, 99.9):
                value = percentile_us(times, percent)
                figures.append(Figure(f"{name}_{side}_p{percent:g}", value, "us"))
        batch, echo = sides.values()
        spread = np.array(
            [
                np.median(ours) / np.median(plain)
                for ours, plain in zip(self.subject, self.echo, strict=True)
            ]
        )
        best, plain_us = self.best_repeat()
        p99 = percentile_us(batch, 99) / percentile_us(echo, 99)
        figures += [
            Figure(f"{name}_best_batch_p50", best, "us"),
            Figure(f"{name}_best_echo_p50", plain_us, "us"),
            Figure(f"{name}_ratio_p50", best / plain_us, "x echo", p50_max),
            Figure(f"{name}_ratio_p50_pooled", float(np.median(batch) / np.median(echo)), "x echo"),
            Figure(f"{name}_ratio_p99", p99, "x echo", p99_max),
            Figure(f"{name}_ratio_block_min", float(spread.min()), "x echo"),
            Figure(f"{name}_ratio_block_p50", float(np.median(spread)), "x echo"),
            Figure(f"{name}_ratio_block_max", float(spread.max()), "x echo"),
            Figure(f"{name}_samples", float(batch.size), "round trips"),
        ]
        return figures

    def best_repeat(self) -> tuple[float, float]:
        """Return the smallest median of a repeat and the echo's of the same repeat, in us."""
        block_count = len(self.subject)
        repeat_count = min(REPEAT_COUNT, block_count)
        medians: list[tuple[float, float]] = []
        for repeat in range(repeat_count):
            start = repeat * block_count // repeat_count
            end = (repeat + 1) * block_count // repeat_count
            medians.append(
                (
                    percentile_us(np.concatenate(self.subject[start:end]), 50),
                    percentile_us(np.concatenate(self.echo[start:end]), 50),
                )
            )
        return min(medians)
