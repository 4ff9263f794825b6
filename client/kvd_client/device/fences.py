"""The fence page: how far each stream of a rank is, readable by any process that maps it.

One page of shared memory per rank and incarnation holds lanes of 128 bytes, one per stream. A lane
has three 64-bit words:

    [0, 8)     begun      stored by the host before the work of this number is enqueued
    [8, 16)    submitted  stored after the work was enqueued
    [16, 24)   done       stored by the stream after the work ran

A stream is quiet when done equals begun. Numbers start at 1 and only grow; they are compared
cyclically and never reach the greatest 64-bit value. A page is never reset and never shared between
ranks: a new incarnation gets a new page, whose bytes are zero.

Every word has one writer at a time. Words are aligned and stored by one instruction, so a reader in
another process sees the old or the new number, never a mixture. This module imports neither numpy
nor a device library, because daemon and holder use it too.
"""

import ctypes
import mmap
import os
from typing import Final, NamedTuple, NewType

from kvd_client.device.descriptors import create_memory
from kvd_client.errors import DeviceError, ForkedError
from kvd_client.process import PROCESS

LaneNumber = NewType("LaneNumber", int)
"""Counts the submissions of a lane; 0 stands before the first."""

LANE_BYTES: Final = 128
"""Two cache lines, so that the writers of two lanes never share one."""
LANES_COUNT: Final = 32
PAGE_BYTES: Final = LANE_BYTES * LANES_COUNT
"""4,096: one page of the host, the grain in which memory is registered with a GPU."""

ALLOCATOR_LANE: Final = 0
"""Lane of the stream that carries out effects."""
FORWARD_LANE: Final = 1
"""Lane of the stream that runs the model."""
LOAD_LANE: Final = 3
"""Lane of the stream that copies from host pools into the arena."""
BACKUP_LANE: Final = 4
"""Lane of the stream that copies from the arena into host pools."""
STEP_LANE: Final = 2
"""Lane of launches: begun when a step is launched, done by its stream behind the end of the step.

What an engine enqueues itself is counted in no other.
"""

_LANE_WORDS_COUNT: Final = LANE_BYTES // 8
_BEGUN: Final = 0
_SUBMITTED: Final = 1
_DONE: Final = 2
_WORD_MASK: Final = (1 << 64) - 1
_HALF_RANGE: Final = 1 << 63


class LaneValues(NamedTuple):
    """The three words of a lane, read one after the other from the last written to the first."""

    begun: LaneNumber
    submitted: LaneNumber
    done: LaneNumber

    @property
    def quiet(self) -> bool:
        """Return whether everything begun is done."""
        return self.done == self.begun


def passed(current: LaneNumber, wanted: LaneNumber) -> bool:
    """Return whether ``current`` is at or behind ``wanted`` in the cyclic order of numbers."""
    return ((current - wanted) & _WORD_MASK) < _HALF_RANGE


class Lane:
    """The words of one stream; `begin`, `mark_submitted` and `mark_done` belong to its owner.

    A fork of the owner shares the page and none of the streams: it may count nothing.
    """

    def __init__(self, words: memoryview, *, lane_index: int) -> None:
        self._words = words
        self._begun_index = lane_index * _LANE_WORDS_COUNT + _BEGUN
        self._submitted_index = lane_index * _LANE_WORDS_COUNT + _SUBMITTED
        self._done_index = lane_index * _LANE_WORDS_COUNT + _DONE
        self._pid = PROCESS.pid
        self.lane_index = lane_index

    def begin(self) -> LaneNumber:
        """Store and return the number of the submission that is about to be enqueued.

        Raises ForkedError in a fork of the process that mapped the page.
        """
        if PROCESS.pid != self._pid:
            raise _forked(self._pid)
        number = self._words[self._begun_index] + 1
        assert number < _WORD_MASK, "the greatest number would never be waited for rightly"
        self._words[self._begun_index] = number
        return LaneNumber(number)

    def mark_submitted(self, number: LaneNumber) -> None:
        """Store that the work of this number is enqueued, so others may wait for it."""
        self._words[self._submitted_index] = number

    def mark_done(self, number: LaneNumber) -> None:
        """Store that the work of this number ran; called by whatever plays the stream."""
        self._words[self._done_index] = number

    def values(self) -> LaneValues:
        """Return the three words; ``done`` is read first, so it is never ahead of ``begun``."""
        done = self._words[self._done_index]
        submitted = self._words[self._submitted_index]
        begun = self._words[self._begun_index]
        return LaneValues(LaneNumber(begun), LaneNumber(submitted), LaneNumber(done))

    @property
    def done_address(self) -> int:
        """Return where ``done`` lies in this process, for a GPU that writes or waits for it.

        Raises DeviceError for a page that was mapped read-only.
        """
        try:
            start = ctypes.addressof(ctypes.c_char.from_buffer(self._words))
        except TypeError as error:
            raise DeviceError(f"lane {self.lane_index} lies in a read-only mapping") from error
        return start + 8 * self._done_index

    @property
    def quiet(self) -> bool:
        """Return whether everything begun on this lane is done."""
        return self.values().quiet

    def complete(self) -> LaneValues:
        """Declare everything begun done, for a stream whose processes are gone.

        Returns the words as they were before; whoever keeps a journal writes them there first.
        Raises ForkedError in a fork: completed by it, a living stream would look quiet.
        """
        if PROCESS.pid != self._pid:
            raise _forked(self._pid)
        before = self.values()
        self._words[self._submitted_index] = before.begun
        self._words[self._done_index] = before.begun
        return before


class FencePage:
    """A mapping of a rank's fence page."""

    def __init__(self, descriptor: int, *, writable: bool = True) -> None:
        """Map a descriptor, which stays the caller's to close; raises DeviceError."""
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes < PAGE_BYTES:
            raise DeviceError(
                f"a fence page has {PAGE_BYTES} bytes, descriptor {descriptor} holds {size_bytes}"
            )
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        self._pid = PROCESS.pid
        self._mapping = mmap.mmap(descriptor, PAGE_BYTES, flags=mmap.MAP_SHARED, prot=access)
        self._words = memoryview(self._mapping).cast("Q")
        self._lanes = tuple(Lane(self._words, lane_index=i) for i in range(LANES_COUNT))

    def lane(self, lane_index: int) -> Lane:
        """Return a lane; raises DeviceError if the page has no such lane, ForkedError in a fork."""
        if PROCESS.pid != self._pid:
            raise _forked(self._pid)
        if not 0 <= lane_index < LANES_COUNT:
            raise DeviceError(f"a fence page has lanes 0 to {LANES_COUNT - 1}, not {lane_index}")
        return self._lanes[lane_index]

    def read_lanes(self) -> tuple[LaneValues, ...]:
        """Return the words of all lanes, lane 0 first."""
        return tuple(lane.values() for lane in self._lanes)

    @property
    def quiet(self) -> bool:
        """Return whether all lanes are quiet."""
        return all(lane.quiet for lane in self._lanes)

    def complete(self) -> tuple[LaneValues, ...]:
        """Complete every lane of a dead rank and return the words as they were before."""
        return tuple(lane.complete() for lane in self._lanes)

    def close(self) -> None:
        """Give the mapping up; lanes of this page cannot be used afterwards."""
        self._words.release()
        self._mapping.close()


def _forked(owner_pid: int) -> ForkedError:
    return ForkedError(
        f"a fence page was mapped by process {owner_pid} and is used by its fork {PROCESS.pid}"
    )


def create_fence_page(name: str) -> int:
    """Create the memory of a fresh fence page and return its descriptor."""
    return create_memory(name, PAGE_BYTES)
