"""What a holder keeps: names, sizes, bounds, and the nonce."""

import os
from collections.abc import Iterator

import pytest

from kvd.errors import ServeError
from kvd.hold import store
from kvd.hold.message import HeldMemory
from kvd.hold.store import DescriptorTable, create_nonce, read_nonce
from kvd_client.device.descriptors import create_memory
from kvd_proto.errors import ErrorCode


@pytest.fixture
def table() -> Iterator[DescriptorTable]:
    table = DescriptorTable()
    yield table
    table.close()


def is_open(descriptor: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_descriptors_are_listed_in_order_of_names(table: DescriptorTable) -> None:
    table.put("g/0/1/arena", create_memory("b", 200), 200)
    table.put("g/0/0/arena", create_memory("a", 100), 100)

    assert table.held() == (HeldMemory("g/0/0/arena", 100), HeldMemory("g/0/1/arena", 200))


def test_a_dropped_descriptor_is_closed_and_its_name_is_free(table: DescriptorTable) -> None:
    first, second = create_memory("a", 100), create_memory("a", 100)
    table.put("arena", first, 100)

    table.drop("arena")

    assert not is_open(first)
    table.put("arena", second, 100)
    assert table.get("arena") == second


def test_a_name_in_use_is_refused_and_the_first_stays(table: DescriptorTable) -> None:
    first, second = create_memory("a", 100), create_memory("a", 100)
    table.put("arena", first, 100)

    with pytest.raises(ServeError, match="'arena' is kept already") as refused:
        table.put("arena", second, 100)

    assert refused.value.code is ErrorCode.BAD_ARGUMENT
    assert table.get("arena") == first
    assert is_open(second)
    os.close(second)


def test_memory_of_a_gpu_has_the_size_that_is_said(table: DescriptorTable) -> None:
    """Its descriptor is a file of the driver's, as this one is of another, and tells no size."""
    descriptor = os.open("/dev/null", os.O_RDONLY)

    table.put("g/0/0/arena", descriptor, 100 << 30)

    assert table.held() == (HeldMemory("g/0/0/arena", 100 << 30),)
    assert table.size_bytes("g/0/0/arena") == 100 << 30


def test_a_size_that_is_not_the_descriptors_is_refused_with_both(table: DescriptorTable) -> None:
    descriptor = create_memory("a", 100)

    with pytest.raises(ServeError, match="said to have 4096 bytes, its descriptor has 100"):
        table.put("arena", descriptor, 4096)

    assert table.held() == ()
    os.close(descriptor)


def test_one_descriptor_too_many_is_refused_with_the_bound(
    table: DescriptorTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "DESCRIPTORS_MAX", 1)
    table.put("one", create_memory("a", 100), 100)
    second = create_memory("a", 100)

    with pytest.raises(ServeError, match="DESCRIPTORS_MAX = 1"):
        table.put("two", second, 100)

    os.close(second)


@pytest.mark.parametrize("name", ["", "two words", "a:b", "tab\t", "ä", "x" * 201, "line\n"])
def test_a_name_that_a_service_manager_would_not_take_is_refused(
    table: DescriptorTable, name: str
) -> None:
    with pytest.raises(ServeError, match="no name for a descriptor"):
        table.put(name, 0, 100)


@pytest.mark.parametrize("operation", ["get", "drop"])
def test_an_unknown_name_is_named(table: DescriptorTable, operation: str) -> None:
    with pytest.raises(ServeError, match="nothing is kept as 'arena'"):
        getattr(table, operation)("arena")


def test_closing_the_table_closes_what_it_keeps() -> None:
    table = DescriptorTable()
    descriptor = create_memory("a", 100)
    table.put("arena", descriptor, 100)

    table.close()

    assert not is_open(descriptor)
    assert len(table) == 0


def test_nonces_differ_and_can_be_read_again() -> None:
    one, two = create_nonce(), create_nonce()

    assert read_nonce(one) == read_nonce(one)
    assert read_nonce(one) != read_nonce(two)
    os.close(one)
    os.close(two)


@pytest.mark.parametrize("size_bytes", [16, 32])
def test_memory_without_a_nonce_is_refused(size_bytes: int) -> None:
    descriptor = create_memory("empty", size_bytes)

    with pytest.raises(ServeError, match="holds no nonce"):
        read_nonce(descriptor)

    os.close(descriptor)
