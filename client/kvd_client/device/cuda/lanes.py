"""Lanes as streams see them: fence pages registered with the GPU, once per page and process."""

from dataclasses import dataclass
from typing import Final

from kvd_client.device.cuda.driver import Address, Driver
from kvd_client.device.fences import PAGE_BYTES, Lane

_PAGE_MASK: Final = ~(PAGE_BYTES - 1)


@dataclass(frozen=True, slots=True)
class _Registered:
    address: Address
    users_count: int


class LaneAddresses:
    """Which fence pages are registered, and where streams find them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pages: dict[int, _Registered] = {}

    def acquire(self, lane: Lane) -> int:
        """Return where a stream writes a lane's ``done`` word; registers its page if need be."""
        host_address = lane.done_address
        page = host_address & _PAGE_MASK
        registered = self._pages.get(page)
        if registered is None:
            registered = _Registered(self._driver.register(page, PAGE_BYTES), 0)
        self._pages[page] = _Registered(registered.address, registered.users_count + 1)
        return registered.address + host_address - page

    def release(self, done_address: int) -> None:
        """Undo one `acquire`; with the last one the page is no longer registered."""
        page = done_address & _PAGE_MASK
        registered = self._pages.pop(page)
        if registered.users_count > 1:
            self._pages[page] = _Registered(registered.address, registered.users_count - 1)
        else:
            self._driver.unregister(page)
