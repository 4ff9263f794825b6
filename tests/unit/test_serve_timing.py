"""Batch times: newest ones count, totals count all."""

from kvd.serve.timing import RING_COUNT, CoreTimes


def test_without_batches_quantiles_are_zero() -> None:
    assert CoreTimes().quantiles_us() == (0.0, 0.0)


def test_quantiles_are_in_microseconds() -> None:
    times = CoreTimes()
    for elapsed_us in range(1, 101):
        times.add(elapsed_us * 1000)

    assert times.quantiles_us() == (51.0, 100.0)


def test_only_the_newest_batches_count_for_quantiles_but_all_for_totals() -> None:
    times = CoreTimes()
    for _ in range(RING_COUNT):
        times.add(1_000_000)
    for _ in range(RING_COUNT):
        times.add(1_000)

    assert times.quantiles_us() == (1.0, 1.0)
    assert times.batch_count == 2 * RING_COUNT
    assert times.total_ns == RING_COUNT * 1_001_000
