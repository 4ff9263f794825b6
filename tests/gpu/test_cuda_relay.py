"""The second backends: interprocess events, and arenas through classic handles."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kvd_client.device.cuda.classic import ClassicHandle, open_classic
from kvd_client.device.cuda.relay import EventImporter, Generation, SharedEvent
from kvd_client.errors import DeviceError
from kvd_proto.errors import ErrorCode
from tests.client.cuda_pair import array
from tests.gpu.gpu_parts import DEADLINE_MS, fill, run_program, tensor_of, the_device, used_bytes

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.gpu


@contextmanager
def program(what: str) -> Generator["subprocess.Popen[str]"]:
    started = run_program("tests.gpu.relay_program", what)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def told(process: "subprocess.Popen[str]") -> list[Any]:
    assert process.stdout is not None
    values: list[Any] = json.loads(process.stdout.readline())
    return values


def next_event(process: "subprocess.Popen[str]") -> SharedEvent:
    slot, generation, gpu_uuid, shared = told(process)
    return SharedEvent(slot, Generation(generation), gpu_uuid, bytes.fromhex(shared))


@pytest.mark.case("129")
def test_events_of_another_process_are_reached_and_their_slots_used_again() -> None:
    the_device()
    importer = EventImporter(the_device().driver)
    with program("events") as exporter:
        assert exporter.stdin is not None
        seen: list[tuple[int, int]] = []
        for _ in range(5):
            one = next_event(exporter)
            before = importer.reached(one)
            done = importer.wait(one, DEADLINE_MS)
            assert importer.reached(one)
            assert not before
            seen.append((done.slot_index, done.generation))
            exporter.stdin.write(f"{done.slot_index} {done.generation}\n")
            exporter.stdin.flush()
        assert seen == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]
    importer.close()


def test_an_event_of_a_killed_process_ends_in_a_time_out() -> None:
    importer = EventImporter(the_device().driver)
    with program("hang") as exporter:
        one = next_event(exporter)
        assert not importer.reached(one)
        exporter.kill()
        exporter.wait()
        with pytest.raises(DeviceError) as ended:
            importer.wait(one, 500)
    print(ended.value.message)
    assert ended.value.code in (ErrorCode.TIMED_OUT, ErrorCode.DEVICE)


def test_an_arena_of_a_living_process_is_mapped_through_its_handle() -> None:
    the_device()
    with program("arena") as owner:
        shared, offset_bytes, size_bytes, gpu_uuid = told(owner)
        handle = ClassicHandle(bytes.fromhex(shared), offset_bytes, size_bytes, gpu_uuid)
        memory, stream = open_classic(the_device(), handle), the_device().stream("classic")
        fill(memory, b"x" * size_bytes)
        commands = the_device().commands(memory)
        commands.zero_units(base_bytes=0, unit_bytes=4096, units=array(1))
        commands.write_words(offset_bytes=0, values=(3, 4))
        stream.enqueue(commands)
        stream.close(DEADLINE_MS)
        assert memory.read_bytes(4096, 8192) == bytes(4096)
        assert memory.read_bytes(8192, 8200) == b"x" * 8
        assert tensor_of(memory).data_ptr() == memory.address
        with pytest.raises(DeviceError, match="this device is"):
            open_classic(the_device(), handle._replace(gpu_uuid="GPU-1"))
        torch.cuda.synchronize()
        mapped = used_bytes()
        memory.close()
        assert used_bytes() <= mapped
