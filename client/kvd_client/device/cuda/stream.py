"""CUDA streams as the port sees them: an own one, or an engine's that is wrapped.

Nothing of a stream is ever captured: a captured write of a lane sets it back with each replay, and
a captured submission would read staging memory that serves another by then.

Invariants:
    fence.submitted: a stream waits for a number of another process's lane once that is submitted
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from kvd_client.device.cuda.commands import CudaCommands, SoleRecipe
from kvd_client.device.cuda.driver import Driver, Handle
from kvd_client.device.cuda.event import CudaEvent, EventPool, poll
from kvd_client.device.cuda.lanes import LaneAddresses
from kvd_client.device.cuda.launch import Launch, encode_recipe
from kvd_client.device.cuda.staging import Staging
from kvd_client.device.cuda.submission import (
    INLINE_BYTES,
    LARGE_TILE_BYTES,
    MOVE_WORDS,
    WORD_BYTES,
)
from kvd_client.device.fences import Lane, LaneNumber, passed
from kvd_client.device.port import Commands, Event
from kvd_client.errors import DeviceError, ForkedError
from kvd_client.process import PROCESS
from kvd_proto.errors import ErrorCode

BLOCKS_PER_MULTIPROCESSOR: Final = 8
"""As many blocks as run at once; each takes tiles until none is left."""
SMALL_BLOCKS_PER_MULTIPROCESSOR: Final = 16
"""For moves in small tiles, where starting a block costs as much as a tile."""

_NO_WORDS: Final = 0, 0
_NO_NUMBER: Final = LaneNumber(0)
_NONE: Final = np.zeros(0, dtype=np.int64)


class _Arguments:
    """The one argument of a kernel, and the pointer to it that the driver reads."""

    __slots__ = ("_bytes", "_pointer", "address", "content")

    def __init__(self, size_bytes: int) -> None:
        self._bytes = (ctypes.c_uint8 * size_bytes)()
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._bytes))
        self.address = ctypes.addressof(self._pointer)
        self.content = memoryview(self._bytes).cast("B")


class CudaStream:
    """A stream on one GPU."""

    def __init__(
        self,
        name: str,
        *,
        driver: Driver,
        pool: EventPool,
        lanes: LaneAddresses,
        uploads: Handle,
        lane: Lane | None = None,
        raw: int | None = None,
    ) -> None:
        """Start a stream, or wrap the one that ``raw`` names, which stays its owner's to end.

        Allocates everything that enqueuing needs and runs both kernels once on nothing, so that
        later neither memory is allocated nor code loaded.
        """
        driver.enter()
        self._name = name
        self._driver = driver
        self._pool = pool
        self._lanes = lanes
        self._lane = lane
        self._pid = PROCESS.pid
        self._owned = raw is None
        self._handle: Handle = driver.new_stream() if raw is None else driver.known_stream(raw)
        self._order = threading.RLock()
        self._failure: BaseException | None = None
        self._closed = False
        self._blocks_max = BLOCKS_PER_MULTIPROCESSOR * driver.multiprocessor_count
        self._small_blocks_max = SMALL_BLOCKS_PER_MULTIPROCESSOR * driver.multiprocessor_count
        self._inline = _Arguments(INLINE_BYTES)
        self._staged = _Arguments(WORD_BYTES)
        self._move = _Arguments(WORD_BYTES * MOVE_WORDS)
        self._start = {
            (moves, inline): driver.launcher(
                self._handle,
                moves=moves,
                inline=inline,
                arguments_address=arguments.address,
            )
            for moves, inline, arguments in (
                (False, True, self._inline),
                (False, False, self._staged),
                (True, True, self._inline),
                (True, False, self._move),
            )
        }
        """What launches each kernel: by whether it moves units, and gets all as its argument."""
        self._start_inline = self._start[False, True]
        self._is_capturing = driver.capture_check(self._handle)
        self._check_usable()
        self._staging = Staging(driver, pool, uploads, lane=lane)
        self._counter_address = self._staging.counter_address
        self._done_address = 0 if lane is None else lanes.acquire(lane)
        self._registered: dict[int, int] = {}
        """Where further lanes are for the GPU, by where they are for this process."""
        for launch in (Launch(), _nothing_to_move()):
            for staged in (False, True):
                self._launch(launch, 0, _NO_NUMBER, staged=staged)

    @property
    def name(self) -> str:
        """Return the name that errors use."""
        return self._name

    @property
    def raw(self) -> int:
        """Return the stream as the integer that torch and cupy take."""
        self._check_owner()
        return self._driver.raw_stream(self._handle)

    def enqueue(self, commands: Commands) -> None:
        """Enqueue collected commands of the CUDA device."""
        if not isinstance(commands, CudaCommands):
            raise DeviceError(f"CUDA stream {self._name!r} cannot run a {type(commands).__name__}")
        commands.memory.mapping()
        base_address = commands.base_address
        with self._order:
            number = self._begin()
            try:
                if commands.sole is not None:
                    self._launch_sole(commands, commands.sole, number)
                    if self._lane is not None:
                        self._lane.mark_submitted(number)
                    return
                launches = commands.launches
                for launch in launches[:-1]:
                    self._launch(launch, base_address, _NO_NUMBER)
                if launches and not launches[-1].is_move:
                    # The last launch writes the lane itself, which saves a call of the driver.
                    self._launch(launches[-1], base_address, number)
                    if self._lane is not None:
                        self._lane.mark_submitted(number)
                else:
                    if launches:
                        self._launch(launches[-1], base_address, _NO_NUMBER)
                    self._end(number)
            except BaseException as error:
                self._failure = error
                raise

    def submit(self, work: Callable[[], None]) -> None:
        """Call ``work`` now, with this stream current for torch and cupy.

        What it enqueues there is in this stream's order. What it raises fails the stream and is
        raised from here.
        """
        with self._order:
            number = self._begin()
            try:
                with self._driver.current(self._handle):
                    work()
                self._end(number)
            except BaseException as error:
                self._failure = error
                raise

    def record(self) -> CudaEvent:
        """Enqueue an event and return it."""
        with self._order:
            self._check_usable()
            event = CudaEvent(self._pool)
            self._driver.record(event.handle, self._handle)
            return event

    def record_in(self, event: Handle) -> None:
        """Record an event that somebody else owns, such as one that other processes opened."""
        with self._order:
            self._check_usable()
            self._driver.record(event, self._handle)

    def wait(self, event: Event) -> None:
        """Make later work of this stream wait for an event of a stream of this process."""
        if not isinstance(event, CudaEvent):
            raise DeviceError(
                f"CUDA stream {self._name!r} cannot wait for a {type(event).__name__}"
            )
        with self._order:
            self._check_usable()
            self._driver.wait_event(self._handle, event.handle)

    def wait_lane(self, lane: Lane, number: LaneNumber, timeout_ms: int) -> None:
        """Make later work wait for a number of a lane, which another process may own.

        The host waits until the number is submitted: a stream that waits for work that nobody
        enqueued yet may keep it from ever being enqueued. Raises DeviceError with code TIMED_OUT if
        that takes too long. Once submitted, the number comes or is completed by the daemon.
        """
        self._check_usable()
        if not poll(lambda: passed(lane.values().submitted, number), timeout_ms):
            raise DeviceError(
                f"fence.submitted: number {number} of lane {lane.lane_index} was not submitted "
                f"within {timeout_ms} ms; {lane.values().submitted} was",
                code=ErrorCode.TIMED_OUT,
            )
        with self._order:
            self._check_usable()
            self._driver.wait_word(self._handle, self._address_of(lane), number)

    def write_done(self, lane: Lane, number: LaneNumber) -> None:
        """Enqueue the store of a lane's ``done``, behind everything that is on the stream.

        The GPU carries it out, also when this process is gone by then.
        """
        with self._order:
            self._check_usable()
            self._driver.write_word(self._handle, self._address_of(lane), number)

    def synchronize(self, timeout_ms: int) -> None:
        """Block until everything enqueued is over; raises DeviceError with code TIMED_OUT."""
        event = self.record()
        if not poll(lambda: self._driver.is_reached(event.handle), timeout_ms):
            raise DeviceError(
                f"stream {self._name!r} did not come to its end within {timeout_ms} ms",
                code=ErrorCode.TIMED_OUT,
            )

    def close(self, timeout_ms: int) -> None:
        """Let what is enqueued run, then give everything back; raises DeviceError of a time-out.

        A stream that did not run dry in time keeps its memory, which the GPU may still read.
        """
        self._check_owner()
        if self._closed:
            return
        self._driver.enter()
        event = CudaEvent(self._pool)
        self._driver.record(event.handle, self._handle)
        event.synchronize(timeout_ms)
        self._closed = True
        self._staging.close()
        if self._lane is not None:
            # Failed work and what came behind it were never done, and never will be.
            self._lane.complete()
            self._lanes.release(self._lane.done_address)
        for done_address in self._registered:
            self._lanes.release(done_address)
        if self._owned:
            self._driver.end_stream(self._handle)

    # ---- inside ---------------------------------------------------------------------------------

    def _address_of(self, lane: Lane) -> int:
        """Return where a lane's ``done`` is for the GPU; its page stays registered until close."""
        done_address = lane.done_address
        address = self._registered.get(done_address)
        if address is None:
            address = self._registered[done_address] = self._lanes.acquire(lane)
        return address

    def _begin(self) -> LaneNumber:
        """Check, and count what is enqueued next as one number of the lane; 0 without a lane."""
        self._check_usable()
        return _NO_NUMBER if self._lane is None else self._lane.begin()

    def _end(self, number: LaneNumber) -> None:
        """Have the lane's number done when the GPU got here, and let others wait for it."""
        if self._lane is not None:
            self._driver.write_word(self._handle, self._done_address, number)
            self._lane.mark_submitted(number)

    def _launch(
        self, launch: Launch, base_address: int, number: LaneNumber, *, staged: bool = False
    ) -> None:
        """Launch one submission, as an argument if it is small enough.

        With a number, the lane is done at its end.
        """
        if launch.is_move:
            large = launch.tile_bytes >= LARGE_TILE_BYTES
            tiles = launch.tiles_count
            block_count = max(1, tiles if large else min(tiles, self._small_blocks_max))
        else:
            block_count = min(launch.tiles_count, self._blocks_max) + launch.needs_own_block
        submission = launch.encode(
            base_address=base_address,
            counter_address=self._counter_address,
            done_address=self._done_address if number else 0,
            done_number=number,
        )
        if len(submission) > INLINE_BYTES or staged:
            self._launch_staged(submission, block_count, number, launch if launch.is_move else None)
        else:
            self._inline.content[: len(submission)] = submission
            self._start[launch.is_move, True](block_count)

    def _launch_sole(self, commands: CudaCommands, sole: SoleRecipe, number: LaneNumber) -> None:
        """Launch commands that come to one recipe."""
        words_address, words = 0, _NO_WORDS
        if commands.sole_words is not None:
            offset_bytes, words = commands.sole_words
            words_address = commands.base_address + offset_bytes
        done_address = self._done_address if number else 0
        end = (words_address, *words, self._counter_address, done_address, number)
        submission, tiles_count = encode_recipe(*sole, end)
        block_count = min(tiles_count, self._blocks_max)
        if sole[0].ordered or not tiles_count:
            block_count += 1
        size_bytes = len(submission)
        if size_bytes > INLINE_BYTES:
            self._launch_staged(submission, block_count, number, None)
        else:
            self._inline.content[:size_bytes] = submission
            self._start_inline(block_count)

    def _launch_staged(
        self, submission: bytes, block_count: int, number: LaneNumber, move: Launch | None
    ) -> None:
        """Launch a submission that travels through memory; it ends with a number of the lane."""
        place = self._staging.put(submission)
        address = self._staging.upload(self._handle, place)
        if move is not None:
            self._move.content[:] = move.encode_move(address)
        else:
            self._staged.content[:] = address.to_bytes(WORD_BYTES, "little")
        self._start[move is not None, False](block_count)
        self._staging.hold(self._handle, place, number)

    def _check_owner(self) -> None:
        if self._pid != PROCESS.pid:
            raise ForkedError(
                f"stream {self._name!r} belongs to process {self._pid} "
                f"and is used by its fork {PROCESS.pid}"
            )

    def _check_usable(self) -> None:
        if self._pid != PROCESS.pid:
            self._check_owner()
        if self._closed:
            raise DeviceError(f"stream {self._name!r} is closed")
        if self._failure is not None:
            raise DeviceError(
                f"work on stream {self._name!r} failed: "
                f"{type(self._failure).__name__}: {self._failure}"
            ) from self._failure
        self._driver.enter()
        if self._is_capturing():
            raise DeviceError(
                f"stream {self._name!r} is being captured into a graph; batches, launches and "
                f"lanes of kvd stay outside of captures"
            )


def _nothing_to_move() -> Launch:
    launch = Launch()
    launch.add_move(0, LARGE_TILE_BYTES, _NONE, _NONE)
    return launch
