"""Books that decide, and modelled streams that carry out what they decided, on one small band.

Every decision of the real allocator is performed as a rank performs it: what the books ask A to
wait for, A waits for, in front of the work that it guards; whoever is to follow A does. Nothing
else orders anything, so a wait that the books leave out is a race between two actions, and the
detector of the modelled device finds it in whichever order they run.

A is the allocator's stream, F that of forwards, LD and BK those of loads and backups. Peers are a
network that obeys no stream. Loads and backups have host tiers of their own, so that what races is
the arena.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kvd.alloc.band import Moves, Units
from kvd.alloc.chain import BandMoves, Shortage
from kvd.alloc.checks import CheckLevel
from kvd.alloc.clearance import (
    CLEARANCE,
    READ_CLEARANCE,
    Clearance,
    Consumer,
    ReadClearance,
    Reader,
    consumer_follows,
)
from kvd.alloc.signals import Signal, copy_signal, step_signal, transfer_signal
from kvd.alloc.uses import UseKind
from kvd.testing.modelled.choice import InOrder
from kvd.testing.modelled.device import ModelledDevice, ModelledEvent, ModelledStream, ModelledWork
from kvd.testing.modelled.shadow import Accesses
from kvd.testing.modelled.transfers import Network, copy_work
from kvd.testing.modelled.world import World as DeviceWorld
from kvd_proto.memory import Lifetime
from tests.stateful.chains import World

UNIT_BYTES = 16
UNITS = 14
BOOKS = World(
    arena_bytes=UNITS * UNIT_BYTES,
    unit_bytes=(UNIT_BYTES, UNIT_BYTES),
    lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
    window_tokens=(8, 0),
)
"""Units 1 to 13: a band that grows up, in which everything happens, against one that grows down."""
ROOM_UNITS = UNITS - 1
NO_NAMES: Units = np.zeros(0, dtype=np.int64)
SPARE_NAME = 9
"""The first name that whoever comes next is given."""


class Bench:
    """One arena, its books and its streams."""

    def __init__(
        self,
        *,
        clearance: Clearance = CLEARANCE,
        read_clearance: ReadClearance = READ_CLEARANCE,
        level: CheckLevel = CheckLevel.STRICT,
    ) -> None:
        self.chain = BOOKS.chain(level)
        self.order = self.chain.order
        self.order.clearance = clearance
        self.order.read_clearance = read_clearance
        self.band = self.chain.bands[0]
        self.world = DeviceWorld(InOrder())
        self.device = ModelledDevice(self.world, declares_only=True)
        self.memory = self.device.allocate(BOOKS.arena_bytes)
        self._loaded_from = self.device.allocate(BOOKS.arena_bytes)
        self._backed_up_to = self.device.allocate(BOOKS.arena_bytes)
        self.allocator = self.device.stream("allocator")
        self.forward = self.device.stream("forward")
        self.loads = self.device.stream("load")
        self.backups = self.device.stream("backup")
        self.network = Network(self.world)
        self.waited: list[Signal] = []
        """What the books had A wait for, in order."""
        self.is_refused = False
        """A question was answered with a shortage."""
        self.loads_follow_forwards = True
        """LD waits the tail of F at submission."""
        self.forwards_run_in_order = True
        """A forward on another stream waits the forward before it."""
        self._ends: dict[Signal, ModelledEvent] = {}
        self._last_forward: tuple[ModelledStream, ModelledEvent] | None = None
        self._number = 0

    # ---- owners -----------------------------------------------------------------------------

    def live(self, *names: int) -> None:
        """Let names have the next units above the band's span."""
        start, end = self.band.span
        self.band.grow((start, end + len(names)))
        units = self.band.acquire(len(names))
        assert not self.order.take_waits()
        self.band.bind(np.array(names), units)

    def free(self, *names: int) -> None:
        """Give names back."""
        self.band.release(np.array(names))

    def place_of(self, name: int) -> Units:
        """Return where a name lies."""
        units = self.band.physical(np.array([name]))
        assert units[0] > 0
        return units

    # ---- forwards ---------------------------------------------------------------------------

    def launch(
        self,
        *,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        states_writes: bool = True,
        stream: ModelledStream | None = None,
        also_writes: Units = NO_NAMES,
    ) -> None:
        """Launch a step that reads and writes names where they lie now.

        ``also_writes`` are units that it writes ahead of all else, such as slots that it clears.
        """
        stream = self.forward if stream is None else stream
        last = self._last_forward
        if last is not None and last[0] is not stream and self.forwards_run_in_order:
            stream.wait(last[1])
        stream.wait(self.allocator.record())
        step = self.chain.steps.launched_count + 1
        written = self.band.physical(np.array(writes, dtype=np.int64))
        self.chain.launch_step(
            step, 0, [np.array(writes, dtype=np.int64), NO_NAMES] if states_writes else None
        )
        self._submit(
            stream,
            f"step {step}",
            reads=self.band.physical(np.array(reads, dtype=np.int64)),
            writes=np.concatenate((also_writes, written)),
        )
        end = stream.record()
        self._ends[step_signal(step)] = end
        self._last_forward = stream, end

    def process(self) -> None:
        """Process the oldest step in flight, as a host does that has its result."""
        step = self.chain.steps.processed_count + 1
        end = self._ends[step_signal(step)]
        end.synchronize(0)
        if self.chain.process_step(step):
            self.allocator.wait(end)

    # ---- copies and transfers ---------------------------------------------------------------

    def load(self, units: Units, *, stream: ModelledStream | None = None, number: int = 0) -> None:
        """Submit a copy from the host tier into units."""
        stream = self.loads if stream is None else stream
        if self.loads_follow_forwards:
            stream.wait(self.forward.record())
        if consumer_follows(Consumer.HOST_LOAD, self.order.clearance):
            stream.wait(self.allocator.record())
        signal = copy_signal(number or self._next())
        stream.submit(
            copy_work(
                f"load {signal.number}",
                source=self._loaded_from,
                source_starts=units * UNIT_BYTES,
                destination=self.memory,
                destination_starts=units * UNIT_BYTES,
                length_bytes=UNIT_BYTES,
            )
        )
        self._ends[signal] = stream.record()
        self.band.usage.open(UseKind.COPY_WRITE, signal, units)

    def back_up(self, name: int) -> None:
        """Submit a copy of a name's unit to the host tier."""
        units = self.place_of(name)
        self._wait_for_writers(units, Reader.BACKUP)
        self.backups.wait(self.forward.record())
        self.backups.wait(self.allocator.record())
        signal = copy_signal(self._next())
        self.backups.submit(
            copy_work(
                f"backup {signal.number}",
                source=self.memory,
                source_starts=units * UNIT_BYTES,
                destination=self._backed_up_to,
                destination_starts=units * UNIT_BYTES,
                length_bytes=UNIT_BYTES,
            )
        )
        self._ends[signal] = self.backups.record()
        self.band.usage.open(UseKind.COPY_READ, signal, units)

    def send(self, name: int) -> None:
        """Tell a peer where a name lies, to read it."""
        units = self.place_of(name)
        self._wait_for_writers(units, Reader.NETWORK_SEND)
        self.allocator.record().synchronize(0)
        self.network.send(self.memory, units * UNIT_BYTES, UNIT_BYTES)
        self.band.usage.open(UseKind.NETWORK_SEND, transfer_signal(self._next()), units)

    def receive(self, units: Units, *, number: int = 0) -> None:
        """Tell a peer where to write."""
        if consumer_follows(Consumer.PEER_WRITE, self.order.clearance):
            self.allocator.record().synchronize(0)
        content = np.full((units.size, UNIT_BYTES), 7, dtype=np.uint8)
        self.network.receive(self.memory, units * UNIT_BYTES, content)
        signal = transfer_signal(number or self._next())
        self.band.usage.open(UseKind.NETWORK_RECEIVE, signal, units)

    # ---- whoever writes a unit next -----------------------------------------------------------

    def hand_out(
        self,
        consumer: Consumer,
        *,
        count: int = 1,
        load_stream: ModelledStream | None = None,
        forward_stream: ModelledStream | None = None,
    ) -> Units:
        """Hand units to their next writer, as a take does, and have that write them."""
        self._relieve((count, 0))
        if self.is_refused:
            return NO_NAMES
        number, own = 0, None
        if consumer is Consumer.HOST_LOAD:
            number = self._next()
            own = copy_signal(number)
        elif consumer is Consumer.PEER_WRITE:
            number = self._next()
            own = transfer_signal(number)
        units = self.band.acquire(count, consumer=consumer, own=own)
        self.band.bind(np.arange(SPARE_NAME, SPARE_NAME + count), units)
        self._carry_waits()
        match consumer:
            case Consumer.ZEROING:
                self.zero(units)
            case Consumer.HOST_LOAD:
                self.load(units, stream=load_stream, number=number)
            case Consumer.PEER_WRITE:
                self.receive(units, number=number)
            case _:
                self.launch(also_writes=units, stream=forward_stream)
        return units

    def zero(self, units: Units) -> None:
        """Zero units on A."""
        commands = self.device.commands(self.memory)
        commands.zero_units(base_bytes=0, unit_bytes=UNIT_BYTES, units=units)
        self.allocator.enqueue(commands)

    def hand_out_of_the_other_band(self) -> Units:
        """Hand the highest unit to a page of the band that grows down, and zero it there."""
        band = self.chain.bands[1]
        band.grow((ROOM_UNITS, UNITS))
        units = band.acquire(1)
        self._carry_waits()
        self.zero(units)
        return units

    def draw_back(self, units_count: int = 1) -> None:
        """Move what lies in the band's highest units to holes below."""
        start, end = self.band.span
        moves = self.band.rearrange((start, end - units_count))
        self._move([] if moves is None else [BandMoves(0, moves)])

    def give_way(self) -> None:
        """Have the other band ask for all that this one does not need."""
        self._relieve((0, ROOM_UNITS - self.band.live_units))

    # ---- the end ----------------------------------------------------------------------------

    def run(self) -> None:
        """Run all that was enqueued; raises RaceError."""
        self.world.run()

    # ---- inside -----------------------------------------------------------------------------

    def _relieve(self, wanted_units: tuple[int, int]) -> None:
        moved = self.chain.make_room(wanted_units)
        if isinstance(moved, Shortage):
            self.is_refused = True
        else:
            self._move(moved)

    def _move(self, moved: list[BandMoves]) -> None:
        self._carry_waits()
        for index, moves in moved:
            assert index == 0
            self._enqueue_moves(moves)

    def _enqueue_moves(self, moves: Moves) -> None:
        commands = self.device.commands(self.memory)
        commands.move_units(
            base_bytes=0,
            unit_bytes=UNIT_BYTES,
            sources=moves.sources,
            destinations=moves.destinations,
        )
        self.allocator.enqueue(commands)

    def _wait_for_writers(self, units: Units, reader: Reader) -> None:
        order = self.order
        order.wait(
            self.band.usage.writers(units, reader, order.read_clearance, waited=order.waited)
        )
        self._carry_waits()

    def _carry_waits(self) -> None:
        for signal in self.order.take_waits():
            self.waited.append(signal)
            self.allocator.wait(self._ends[signal])

    def _submit(self, stream: ModelledStream, label: str, *, reads: Units, writes: Units) -> None:
        accesses = Accesses(
            reads=(self.memory.extent(reads * UNIT_BYTES, UNIT_BYTES),),
            writes=(self.memory.extent(writes * UNIT_BYTES, UNIT_BYTES),),
        )
        stream.submit(ModelledWork(label, _returning(accesses)))

    def _next(self) -> int:
        self._number += 1
        return self._number


def _returning(accesses: Accesses) -> Callable[[], Accesses]:
    return lambda: accesses
