"""How long the daemon itself takes for a batch, from body bytes to reply bytes."""

RING_COUNT = 4096


class CoreTimes:
    """The newest batch times and their totals."""

    def __init__(self) -> None:
        self._ring_ns = [0] * RING_COUNT
        self.batch_count = 0
        self.total_ns = 0

    def add(self, elapsed_ns: int) -> None:
        """Record one batch."""
        self._ring_ns[self.batch_count % RING_COUNT] = elapsed_ns
        self.batch_count += 1
        self.total_ns += elapsed_ns

    def quantiles_us(self) -> tuple[float, float]:
        """Return median and 99th percentile of the newest batches, in microseconds."""
        count = min(self.batch_count, RING_COUNT)
        if count == 0:
            return 0.0, 0.0
        ordered = sorted(self._ring_ns[:count])
        return ordered[count // 2] / 1000, ordered[min(count - 1, count * 99 // 100)] / 1000
