"""What has gone wrong elsewhere where units come back too late, with the numbers of its case."""

import pytest

from kvd.alloc.requests import Grant
from kvd_proto.memory import Lifetime
from kvd_proto.outcomes import Verdict
from tests.stateful.chains import World, admit


@pytest.mark.case("23")
def test_a_prompt_in_chunks_gets_back_what_slid_out_before_it_asks_for_more() -> None:
    # A window of 1024 and a chunk of 8192 are 36 pages of 256, and one where a row stands inside.
    window_pages, pages = 37, 51
    world = World(
        arena_bytes=2 + 2 * (window_pages + pages),
        unit_bytes=(2, 2),
        lifetimes=(Lifetime.WINDOW, Lifetime.FULL),
        window_tokens=(1024, 0),
        page_tokens=256,
        context_tokens=13_056,
        chunk_tokens=8192,
    )
    table = world.table()
    window, owner = table.chain.bands
    assert admit(table, 1, prompt=12_800, new=256).verdict is Verdict.FITS
    row = table.names.rows_of([1])
    held: list[int] = []
    for tokens in (8192, 4608, *[1] * 4):
        assert isinstance(table.take(row, tokens), Grant)
        held.append(window.live_units)
        table.advance(row, tokens)
        table.holdings.check()
    # Kept, the first chunk's 32 pages and the second's 18 would lie beside the owner's 50.
    assert held[:2] == [32, 4 + 18]
    assert max(held[2:]) == 5
    assert owner.live_units == pages
    assert owner.live_units + held[0] + 18 > window_pages + pages
