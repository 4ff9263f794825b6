"""Random programs for a world's streams, and what a plain model says about their order."""

import random
from dataclasses import dataclass

from kvd.testing.modelled.device import ModelledDevice, ModelledEvent, ModelledStream, ModelledWork
from kvd.testing.modelled.shadow import Accesses
from kvd.testing.modelled.world import World

SIZE_BYTES = 64
STREAMS_COUNT = 4


@dataclass(frozen=True, slots=True)
class Touch:
    """Bytes that an action of a program reads or writes."""

    start_bytes: int
    length_bytes: int
    writes: bool

    def conflicts(self, other: "Touch") -> bool:
        apart = (
            self.start_bytes + self.length_bytes <= other.start_bytes
            or other.start_bytes + other.length_bytes <= self.start_bytes
        )
        return not apart and (self.writes or other.writes)


class Program:
    """Actions, events and waits drawn from a seed; the host waits now and then."""

    def __init__(self, seed: int, world: World, *, length: int, touches: bool) -> None:
        print(f"seed {seed}")
        self._random = random.Random(seed)
        self._world = world
        self._touches = touches
        device = ModelledDevice(world)
        self.memory = device.allocate(SIZE_BYTES)
        self.streams: list[ModelledStream] = [
            device.stream(f"s{index}") for index in range(STREAMS_COUNT)
        ]
        self.ran: list[int] = []
        self.stream_of: list[int] = []
        self.touch_of: list[Touch] = []
        self.before: list[set[int]] = []
        """Of each action: those that are over when it begins."""
        self._tails: list[set[int]] = [set() for _ in self.streams]
        self._host: set[int] = set()
        self._events: list[tuple[ModelledEvent, set[int]]] = []
        self._length = length

    def enqueue_all(self) -> None:
        """Enqueue the program; the world runs only where the host waits."""
        for _ in range(self._length):
            drawn = self._random.random()
            stream = self._random.randrange(STREAMS_COUNT)
            if drawn < 0.55:
                self._action(stream)
            elif drawn < 0.75:
                event = self.streams[stream].record()
                self._events.append((event, set(self._tails[stream])))
            elif drawn < 0.97 and self._events:
                event, known = self._random.choice(self._events)
                self.streams[stream].wait(event)
                self._tails[stream] |= known
            elif self._events:
                event, known = self._random.choice(self._events)
                event.synchronize(0)
                self._host |= known

    def races(self) -> bool:
        """Return whether two actions conflict and neither is over when the other begins."""
        return any(
            self.touch_of[one].conflicts(self.touch_of[other]) and one not in self.before[other]
            for other in range(len(self.before))
            for one in range(other)
        )

    def _action(self, stream: int) -> None:
        number = len(self.before)
        touch = Touch(
            self._random.randrange(SIZE_BYTES - 8),
            self._random.randrange(1, 8),
            self._random.random() < 0.3,
        )
        before = self._tails[stream] | self._host
        self.before.append(before)
        self.stream_of.append(stream)
        self.touch_of.append(touch)
        self._tails[stream] = before | {number}

        def run() -> Accesses:
            self.ran.append(number)
            if not self._touches:
                return Accesses()
            extent = self.memory.extent([touch.start_bytes], touch.length_bytes)
            return Accesses(writes=(extent,)) if touch.writes else Accesses(reads=(extent,))

        self.streams[stream].submit(ModelledWork(f"action {number}", run))
