"""Values that outlive their incarnation: found where they lay, whoever comes for them."""

from collections.abc import Iterator

import numpy as np
import pytest

from kvd_client import Client
from kvd_client.errors import OperationError
from tests.e2e.daemon_process import DaemonProcess, serving, wait_until
from tests.e2e.ranks import Ranks, admit

VALUE = 7
BANDS: tuple[str, ...] = ("window_8", "full")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    settings = ("--check-level", "strict", "--survivor-wait-ms", "300")
    with serving(tmp_path_factory.mktemp("r") / "run", *settings) as running:
        yield running


def units_of(client: Client, virtual: "dict[str, np.ndarray]") -> dict[str, bytes]:
    """Return the bytes of virtual pages in each band, as the tables say that they lie."""
    arena = client.arena_array()
    found: dict[str, bytes] = {}
    for band in client.plan.bands:
        if band.name not in virtual:
            continue
        physical = client.session.mirror.virtual_to_physical(band.name)[virtual[band.name]]
        assert physical.all()
        found[band.name] = b"".join(
            arena[unit * band.unit_bytes : (unit + 1) * band.unit_bytes].tobytes()
            for unit in physical.tolist()
        )
    return found


def make_value(client: Client) -> "tuple[dict[str, np.ndarray], dict[str, bytes]]":
    """Insert what a forward wrote; returns the virtual pages of each band and their bytes."""
    admit(client, [1, 2])
    with client.launch() as step:
        pages = np.asarray(client.virtual_pages([1]).values)
        virtual = dict.fromkeys(BANDS, pages)
        arena = client.arena_array()
        places = {band: client.page_table(band, [1]).values.tolist() for band in BANDS}
        sizes = {band.name: band.unit_bytes for band in client.plan.bands}

        def write() -> None:
            for number, band in enumerate(BANDS, 1):
                for place in places[band]:
                    arena[place * sizes[band] : (place + 1) * sizes[band]] = (
                        16 * number + place % 16
                    )

        step.submit(write)
    with client.batch() as batch:
        batch.processed(step.number)
        batch.insert(VALUE, 1)
    with client.batch() as batch:
        batch.advance([2], 8)
    client.stream.synchronize(5_000)
    return virtual, units_of(client, virtual)


@pytest.mark.case("112")
def test_the_next_incarnation_finds_a_sealed_value_and_can_give_it_up(
    daemon: DaemonProcess,
) -> None:
    with Ranks(daemon.address, "kept") as ranks:
        client = ranks.attach()
        assert client.values == ()
        virtual, written = make_value(client)
        client.close()

        again = ranks.attach()
        assert again.incarnation == client.incarnation + 1
        assert again.values == (VALUE,)
        with again.batch() as batch:
            batch.idle()
        again.stream.synchronize(5_000)
        assert units_of(again, virtual) == written
        admit(again, [3, 4])
        assert units_of(again, virtual) == written
        with again.batch() as batch:
            batch.evict([VALUE])
        with pytest.raises(OperationError, match="value 7 was evicted"), again.batch() as batch:
            batch.evict([VALUE])


def test_a_value_that_nobody_comes_for_is_given_up_in_time(daemon: DaemonProcess) -> None:
    with Ranks(daemon.address, "lost") as ranks:
        client = ranks.attach()
        make_value(client)
        client.close()
        assert daemon.group("lost") is not None
        wait_until("the memory was given back", lambda: daemon.group("lost") is None)
        assert "survivors_lost group=lost" in daemon.log()
        assert ranks.attach().values == ()
