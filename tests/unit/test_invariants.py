"""Every registered invariant of the daemon, broken by hand and found by exactly its name."""

import pytest

from kvd.alloc.checks import CHECKS, Side
from kvd_proto.errors import KvdError
from tests.unit import broken_books, broken_stage

BREAKERS = broken_books.BREAKERS | broken_stage.BREAKERS
NAMES = [check.name for check in CHECKS if check.side is Side.DAEMON]


def test_every_check_of_the_daemon_is_broken_here() -> None:
    assert set(BREAKERS) == set(NAMES)
    assert len(BREAKERS) == len(broken_books.BREAKERS) + len(broken_stage.BREAKERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_is_broken_by_hand_is_found_by_its_name(name: str) -> None:
    with pytest.raises(KvdError) as caught:
        BREAKERS[name]()
    assert caught.value.message.startswith(f"{name}: ")


def test_a_free_row_that_keeps_something_breaks_the_partition_too() -> None:
    with pytest.raises(KvdError, match=r"^request\.rows_partition: row 4 is free"):
        broken_books.rows_partition_unclean()
