"""Staging: where submissions that are no kernel argument wait for the GPU.

A ring of page-locked host memory and one of device memory of the same size. A place is used again
only when the launch that read it is over: its lane's number is done, or an event behind it reached.
Both are allocated once.
"""

import ctypes
from collections import deque
from typing import Final, TypeAlias

from kvd_client.device.cuda.driver import Driver, Handle
from kvd_client.device.cuda.event import EventPool, poll
from kvd_client.device.fences import Lane, LaneNumber, passed
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode

STAGING_BYTES: Final = 4 << 20
COUNTER_BYTES: Final = 256
"""The counter of blocks in front of the device's ring, by itself on its cache lines."""
LONG_BYTES: Final = 64 << 10
"""Copying so much takes about as long as the two calls that let it run beside other work."""
PLACE_WAIT_MS: Final = 30_000
"""How long a submission waits for the GPU to read earlier ones: it holds what is in flight back."""

Place: TypeAlias = tuple[int, int]
"""Bytes ``[start, end)`` of the ring."""


class Staging:
    """The staging memory of one stream."""

    def __init__(
        self,
        driver: Driver,
        pool: EventPool,
        uploads: Handle,
        *,
        lane: Lane | None = None,
        size_bytes: int = STAGING_BYTES,
    ) -> None:
        """Allocate both rings; ``uploads`` is a stream that waits for nothing.

        ``lane`` is where the stream's submissions are counted, which says when they are over.
        """
        self._driver = driver
        self._lane = lane
        self._pool = pool
        self._uploads = uploads
        self._size_bytes = size_bytes
        self.counter_address = driver.allocate(COUNTER_BYTES + size_bytes)
        self._address = self.counter_address + COUNTER_BYTES
        self._host_address = driver.allocate_host(size_bytes)
        area = (ctypes.c_uint8 * size_bytes).from_address(self._host_address)
        self._bytes = memoryview(area).cast("B")
        self._next = 0
        self._in_flight: deque[tuple[Place, LaneNumber, Handle]] = deque()

    def put(self, submission: bytes) -> Place:
        """Write a submission to a place of the ring.

        Blocks while the ring is full; raises DeviceError with code TIMED_OUT if it stays full.
        """
        size_bytes = len(submission)
        assert size_bytes <= self._size_bytes, "a launch is never longer than the ring"
        start = self._next if self._next + size_bytes <= self._size_bytes else 0
        end = start + size_bytes
        while self._in_flight:
            _, number, event = self._in_flight[0]
            # The ring is used in order, so what is in the way is the oldest or comes behind it.
            in_the_way = any(
                start < other_end and at < end for (at, other_end), _, _ in self._in_flight
            )
            if in_the_way:
                self._wait(number, event)
            elif not self._is_read(number, event):
                break
            if event is not None:
                self._pool.give(event)
            self._in_flight.popleft()
        self._next = end
        self._bytes[start:end] = submission
        return start, end

    def _is_read(self, number: LaneNumber, event: Handle) -> bool:
        """Return whether the GPU is done with a place."""
        if event is None:
            assert self._lane is not None
            return passed(self._lane.values().done, number)
        return self._driver.is_reached(event)

    def _wait(self, number: LaneNumber, event: Handle) -> None:
        """Block until the GPU read a place; raises DeviceError with code TIMED_OUT."""
        if not poll(lambda: self._is_read(number, event), PLACE_WAIT_MS):
            raise DeviceError(
                f"staging memory is full: the GPU did not get past an earlier submission within "
                f"{PLACE_WAIT_MS} ms",
                code=ErrorCode.TIMED_OUT,
            )

    def upload(self, stream: Handle, place: Place) -> int:
        """Enqueue the copy of a place ahead of what comes next; returns its address on the device.

        A long list is copied beside what the stream still does, and only waited for.
        """
        start, end = place
        size_bytes = end - start
        address, host_address = self._address + start, self._host_address + start
        if size_bytes < LONG_BYTES:
            self._driver.upload(stream, address, host_address, size_bytes)
            return address
        self._driver.upload(self._uploads, address, host_address, size_bytes)
        event = self._pool.take()
        self._driver.record(event, self._uploads)
        self._driver.wait_event(stream, event)
        self._pool.give(event)
        return address

    def hold(self, stream: Handle, place: Place, number: LaneNumber) -> None:
        """Keep a place until the stream got past what is enqueued now.

        With the number that is done at the end of that, the lane tells, and no call is needed.
        """
        event: Handle = None
        if not number:
            event = self._pool.take()
            self._driver.record(event, stream)
        self._in_flight.append((place, number, event))

    def close(self) -> None:
        """Give both rings back; the stream must have run dry."""
        for _, _, event in self._in_flight:
            if event is not None:
                self._pool.give(event)
        self._in_flight.clear()
        self._driver.free(self.counter_address)
        self._bytes = memoryview(b"")
        self._driver.free_host(self._host_address)
