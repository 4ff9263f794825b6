"""What one request asks of every band, priced before it starts.

The bounds are exact for a program that follows the contract: it takes at most ``chunk_tokens`` at a
time and states what it computed before it takes more. A window then holds the rows behind the last
computed token and those of one chunk, which touch at most one page more than they fill.
"""

from dataclasses import dataclass

from kvd.units import ceil_div
from kvd_proto.memory import Lifetime


@dataclass(frozen=True, slots=True)
class DemandShape:
    """What demand depends on besides the request: the bands, low to high, and the page size."""

    lifetimes: tuple[Lifetime, ...]
    window_tokens: tuple[int, ...]
    """Tokens a window band keeps behind the newest computed one; 0 for other bands."""
    page_tokens: int
    slots_per_request_slots: int


def pages_touched_max(row_tokens: int, page_tokens: int) -> int:
    """Return the most pages that this many consecutive tokens touch, wherever they start."""
    return 0 if row_tokens == 0 else ceil_div(row_tokens - 1, page_tokens) + 1


def request_demand(shape: DemandShape, *, total_tokens: int, chunk_tokens: int) -> tuple[int, ...]:
    """Return the units per band that a request of ``total_tokens`` ever holds at once.

    ``total_tokens`` is the prompt with all tokens still to come; ``chunk_tokens`` the most that it
    takes before it states what was computed.
    """
    total_pages = ceil_div(total_tokens, shape.page_tokens)
    units: list[int] = []
    for lifetime, window_tokens in zip(shape.lifetimes, shape.window_tokens, strict=True):
        if lifetime is Lifetime.STATE:
            units.append(shape.slots_per_request_slots)
        elif lifetime is Lifetime.FULL:
            units.append(total_pages)
        else:
            rows_tokens = window_tokens + min(chunk_tokens, total_tokens)
            units.append(min(total_pages, pages_touched_max(rows_tokens, shape.page_tokens)))
    return tuple(units)
