"""The port's memory and commands on every device that a test can have."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from kvd_client.device.descriptors import create_memory
from kvd_client.device.host import commands as host_commands
from kvd_client.device.port import Memory, Stream
from kvd_client.errors import DeviceError
from tests.client.device_benches import BENCHES, SIZE_BYTES, Bench, content_of, new_memory
from tests.client.host_parts import DEADLINE_MS

UNIT_BYTES = 48
UNITS_COUNT = 100


@pytest.fixture(params=list(BENCHES))
def bench(request: pytest.FixtureRequest) -> Bench:
    return BENCHES[request.param]()


@pytest.fixture
def memory(bench: Bench) -> Iterator[Memory]:
    memory = new_memory(bench.device)
    yield memory
    memory.close()


@pytest.fixture
def stream(bench: Bench) -> Iterator[Stream]:
    stream = bench.device.stream("a")
    yield stream
    stream.close(DEADLINE_MS)


def test_a_mapping_shows_what_another_mapping_wrote(bench: Bench) -> None:
    fd = create_memory("arena", SIZE_BYTES)
    one = bench.device.map(fd, SIZE_BYTES, writable=True)
    two = bench.device.map(fd, SIZE_BYTES, writable=False)
    os.close(fd)

    content_of(one)[123] = 7

    assert content_of(two)[123] == 7
    assert two.buffer[123] == 7
    assert two.size_bytes == SIZE_BYTES
    assert two.address != one.address


def test_a_read_only_mapping_cannot_be_written(bench: Bench) -> None:
    fd = create_memory("arena", SIZE_BYTES)
    memory = bench.device.map(fd, SIZE_BYTES, writable=False)
    os.close(fd)

    assert memory.buffer.readonly
    with pytest.raises(DeviceError, match="read-only"):
        bench.device.commands(memory)


@pytest.mark.parametrize("size_bytes", [0, -1, SIZE_BYTES + 1])
def test_a_mapping_larger_than_its_memory_is_refused(bench: Bench, size_bytes: int) -> None:
    fd = create_memory("arena", SIZE_BYTES)

    with pytest.raises(DeviceError, match=f"map {size_bytes} bytes .* holds {SIZE_BYTES} bytes"):
        bench.device.map(fd, size_bytes)

    os.close(fd)


def filled(memory: Memory, seed: int) -> np.random.Generator:
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    content_of(memory)[:] = generator.integers(1, 256, SIZE_BYTES, dtype=np.uint8)
    return generator


@pytest.mark.case("80")
@pytest.mark.parametrize("units_count", [0, 1, 3, 40])
@pytest.mark.parametrize("unit_bytes", [1, 12, UNIT_BYTES])
@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("small_bytes", [0, host_commands.SMALL_BYTES])
def test_zeroing_units_touches_exactly_their_bytes(
    bench: Bench,
    memory: Memory,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    units_count: int,
    unit_bytes: int,
    adjacent: bool,
    small_bytes: int,
) -> None:
    monkeypatch.setattr(host_commands, "SMALL_BYTES", small_bytes)
    generator = filled(memory, seed=units_count + unit_bytes)
    expected = content_of(memory).copy()
    units = generator.permutation(UNITS_COUNT)[:units_count].astype(np.int64)
    if adjacent:
        units = np.arange(7, 7 + units_count, dtype=np.int64)[::-1]
    for unit in units:
        expected[64 + unit * unit_bytes : 64 + (unit + 1) * unit_bytes] = 0

    commands = bench.device.commands(memory)
    commands.zero_units(base_bytes=64, unit_bytes=unit_bytes, units=units)
    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)

    np.testing.assert_array_equal(content_of(memory), expected)


@pytest.mark.parametrize("staging_bytes", [1, 5 * UNIT_BYTES, 1 << 20])
def test_moving_units_copies_them_and_nothing_else(
    bench: Bench,
    memory: Memory,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    staging_bytes: int,
) -> None:
    monkeypatch.setattr(host_commands, "STAGING_BYTES", staging_bytes)
    generator = filled(memory, seed=staging_bytes)
    expected = content_of(memory).copy()
    places = generator.permutation(UNITS_COUNT).astype(np.int64)
    sources, destinations = places[:17], places[17:34]
    rows = expected[: UNITS_COUNT * UNIT_BYTES].reshape(UNITS_COUNT, UNIT_BYTES)
    rows[destinations] = rows[sources]

    commands = bench.device.commands(memory)
    commands.move_units(
        base_bytes=0, unit_bytes=UNIT_BYTES, sources=sources, destinations=destinations
    )
    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)

    np.testing.assert_array_equal(content_of(memory), expected)


def test_commands_of_one_list_run_in_order(bench: Bench, memory: Memory, stream: Stream) -> None:
    filled(memory, seed=3)
    one = np.array([1], dtype=np.int64)
    two = np.array([2], dtype=np.int64)
    commands = bench.device.commands(memory)
    commands.zero_units(base_bytes=0, unit_bytes=16, units=one)
    commands.move_units(base_bytes=0, unit_bytes=16, sources=one, destinations=two)
    commands.write_int32(offset_bytes=16, entry_count=4, indices=two, values=np.array([-5]))
    commands.write_words(offset_bytes=48, values=(7, 1 << 63))
    commands.zero_bytes(start_bytes=100, end_bytes=SIZE_BYTES)

    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)

    assert content_of(memory)[16:32].view(np.int32).tolist() == [0, 0, -5, 0]
    assert content_of(memory)[32:48].tolist() == [0] * 16
    assert content_of(memory)[48:64].view(np.uint64).tolist() == [7, 1 << 63]
    assert np.count_nonzero(content_of(memory)[100:]) == 0
    assert np.count_nonzero(content_of(memory)[64:100]) == 36


def test_of_a_repeated_table_index_the_last_value_stays(
    bench: Bench, memory: Memory, stream: Stream
) -> None:
    commands = bench.device.commands(memory)
    commands.write_int32(
        offset_bytes=256,
        entry_count=8,
        indices=np.array([3, 5, 3], dtype=np.int64),
        values=np.array([1, 2, 9], dtype=np.int64),
    )
    stream.enqueue(commands)
    stream.synchronize(DEADLINE_MS)

    assert content_of(memory)[256:288].view(np.int32).tolist() == [0, 0, 0, 9, 0, 2, 0, 0]


def test_an_index_behind_its_table_fails_the_stream_and_writes_nothing(
    bench: Bench, memory: Memory, stream: Stream
) -> None:
    commands = bench.device.commands(memory)
    commands.write_int32(offset_bytes=0, entry_count=4, indices=np.array([4]), values=np.array([1]))
    stream.enqueue(commands)

    with pytest.raises(DeviceError, match="IndexError"):
        stream.synchronize(DEADLINE_MS)
    assert np.count_nonzero(content_of(memory)) == 0


NUMBERS = np.zeros(1, dtype=np.int64)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("zero_bytes", {"start_bytes": 0, "end_bytes": SIZE_BYTES + 1}),
        ("zero_bytes", {"start_bytes": 2, "end_bytes": 1}),
        ("zero_bytes", {"start_bytes": -1, "end_bytes": 1}),
        ("zero_units", {"base_bytes": -1, "unit_bytes": 8, "units": NUMBERS}),
        ("zero_units", {"base_bytes": 0, "unit_bytes": 0, "units": NUMBERS}),
        (
            "move_units",
            {"base_bytes": 0, "unit_bytes": 8, "sources": NUMBERS, "destinations": NUMBERS[:0]},
        ),
        (
            "write_int32",
            {"offset_bytes": 8188, "entry_count": 2, "indices": NUMBERS, "values": NUMBERS},
        ),
        (
            "write_int32",
            {"offset_bytes": 2, "entry_count": 1, "indices": NUMBERS, "values": NUMBERS},
        ),
        (
            "write_int32",
            {"offset_bytes": 0, "entry_count": 1, "indices": NUMBERS, "values": NUMBERS[:0]},
        ),
        ("write_words", {"offset_bytes": SIZE_BYTES - 8, "values": (0, 0)}),
        ("write_words", {"offset_bytes": 8, "values": (0, 0)}),
    ],
)
def test_commands_outside_the_memory_are_refused_at_once(
    bench: Bench, memory: Memory, method: str, arguments: dict[str, object]
) -> None:
    commands = bench.device.commands(memory)

    with pytest.raises(DeviceError):
        getattr(commands, method)(**arguments)


def test_memory_and_commands_of_another_device_are_refused(bench: Bench, stream: Stream) -> None:
    class Foreign:
        pass

    with pytest.raises(DeviceError, match="Foreign"):
        bench.device.commands(Foreign())  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="Foreign"):
        stream.enqueue(Foreign())  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="Foreign"):
        stream.wait(Foreign())  # type: ignore[arg-type]
