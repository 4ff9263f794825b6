"""Figures of benchmarks: targets, repeats, ratios."""

import numpy as np
import pytest

from kvd.testing.bench_figures import Comparison, Figure, Times


def block(median_us: int, *, count: int = 11) -> Times:
    return np.full(count, median_us * 1000, dtype=np.int64)


def comparison(*pairs: tuple[int, int]) -> Comparison:
    return Comparison(
        tuple(block(batch) for batch, _ in pairs), tuple(block(echo) for _, echo in pairs)
    )


def values(*pairs: tuple[int, int]) -> dict[str, Figure]:
    figures = comparison(*pairs).figures("x", p50_max=1.7, p99_max=3.0)
    return {figure.name: figure for figure in figures}


@pytest.mark.parametrize(
    ("value", "target", "ok"), [(1.7, 1.7, True), (1.71, 1.7, False), (9.0, None, None)]
)
def test_a_figure_is_ok_up_to_its_target_and_says_nothing_without_one(
    value: float, target: float | None, ok: bool | None
) -> None:
    fields = Figure("f", value, "us", target).fields()
    assert fields == {"name": "f", "value": value, "unit": "us", "target": target, "ok": ok}


def test_the_target_ratio_is_that_of_the_repeat_with_the_fastest_batch() -> None:
    # The second repeat has the better ratio, but only because its echo was slow.
    figures = values((150, 100), (160, 160), (300, 100), (300, 100), (300, 100))

    assert figures["x_best_batch_p50"].value == 150
    assert figures["x_best_echo_p50"].value == 100
    assert figures["x_ratio_p50"].value == pytest.approx(1.5)
    assert figures["x_ratio_p50"].ok is True


def test_repeats_share_all_blocks_in_order() -> None:
    # Ten blocks, two to a repeat: the fastest single block does not make a fastest repeat alone.
    pairs = [(400, 100)] * 8 + [(100, 100), (300, 100)]

    best_us, _ = comparison(*pairs).best_repeat()

    assert best_us == 200


def test_pooled_ratio_and_spread_cover_all_blocks() -> None:
    figures = values((200, 100), (300, 100), (300, 100))

    assert figures["x_ratio_p50_pooled"].value == pytest.approx(3.0)
    assert figures["x_ratio_block_min"].value == pytest.approx(2.0)
    assert figures["x_ratio_block_max"].value == pytest.approx(3.0)
    assert figures["x_samples"].value == 33
