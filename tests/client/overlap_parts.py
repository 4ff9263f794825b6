"""What the tests of overlapped forwards share: gates on streams, and one effect to look for."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from kvd.testing.small_rank import FULL, PLAN, outcome
from kvd_client import Client, DeviceError
from kvd_client.device.port import Stream
from kvd_proto.outcomes import Column, Outcome, Zero
from tests.client.host_parts import Gate
from tests.client.scripted_daemon import DEADLINE_MS, STALL_MS

DIRT = 0xAB


def units(kv: Client, band: int) -> npt.NDArray[np.uint8]:
    return kv.arena_array().reshape(-1, PLAN.bands[band].unit_bytes)


def zero(unit: int) -> Outcome:
    return outcome([Zero(FULL, Column(0))], columns=[[unit]])


def dirty(kv: Client) -> None:
    """Fill the arena with bytes that an effect has to change; no stream is at work then."""
    kv.stream.synchronize(DEADLINE_MS)
    kv.arena_array()[:] = DIRT


def settle(stream: Stream) -> None:
    stream.synchronize(DEADLINE_MS)


def assert_stalls(stream: Stream) -> None:
    with pytest.raises(DeviceError, match=f"within {STALL_MS} ms"):
        stream.synchronize(STALL_MS)


@contextmanager
def gate_on(stream: Stream) -> Generator[Gate]:
    """Occupy a stream; the gate opens at the end of the block at the latest."""
    gate = Gate()
    stream.submit(gate)
    try:
        yield gate
    finally:
        gate.open()


class Gates(ExitStack):
    """Gates that stay closed until a test opens them, or ends."""

    def on(self, stream: Stream) -> Gate:
        """Occupy a stream."""
        return self.enter_context(gate_on(stream))

    def running_step(self, kv: Client, *, reads_done: bool = True) -> Gate:
        """Launch a step whose work runs until the gate opens."""
        with kv.launch() as step:
            if reads_done:
                step.reads_done()
            return self.on(step.stream)
