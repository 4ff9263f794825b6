"""How many pages of a window one request holds at most, from when its rows are freed.

Rows are freed by whole pages behind a cursor that trails the request's length; what lies between
the cursor and the last row taken is held:

    0 ............ [cursor ........ computed) [computed ......... taken)
      freed or      the window, and what has   a chunk or a step, in
      never owned   not slid out whole yet     flight or about to be

The cursor stands on a page edge, so the pages held are the rows held, rounded up once. How far it
trails depends on the mode. A request never holds more than the pages of its own rows.
"""

from enum import StrEnum
from typing import NamedTuple

from kvd.units import align_down, align_up, ceil_div, exact_div


class WindowMode(StrEnum):
    """When the rows behind a window are freed."""

    TREE = "tree"
    """A prefix tree shares them: only when the tree takes a finished chunk, and never past what a
    match of the newest state checkpoint needs."""
    STEP = "step"
    """At once when a chunk or step was computed, which is stated before the next is taken."""
    LAG = "lag"
    """As STEP, but the next chunk or step is taken while the previous one still runs."""


class WindowPace(NamedTuple):
    """How the rows behind one window come and go: what no request changes."""

    mode: WindowMode
    window_tokens: int
    page_tokens: int
    begun_tokens: int
    """Tokens that decoding adds before the last chunk slid anything; 0 without overlap."""
    kept_pages: int
    """The most pages held just before a chunk, not counting a previous one that still runs."""
    steady_pages: int
    """The most pages held while decoding, were the request long enough."""


class Extent(NamedTuple):
    """The part of a request that it computes itself; it starts on a page edge."""

    extend_tokens: int
    """Prompt tokens to compute."""
    new_tokens: int
    """Tokens that may follow the prompt."""
    chunk_tokens: int
    """The most prompt tokens taken at a time, at most ``extend_tokens``."""


def pages_touched_max(row_tokens: int, page_tokens: int) -> int:
    """Return the most pages that this many consecutive tokens touch, wherever they start."""
    return 0 if row_tokens == 0 else ceil_div(row_tokens - 1, page_tokens) + 1


def window_pace(
    mode: WindowMode,
    *,
    window_tokens: int,
    page_tokens: int,
    step_tokens: int,
    overlap: bool,
    slide_tokens: int,
    grid_tokens: int,
) -> WindowPace:
    """Return the pace of one window.

    ``step_tokens`` is the most that one step of decoding takes, ``slide_tokens`` what leaves the
    window before it slides (at least a page), and ``grid_tokens`` the distance of the checkpoints
    that hold rows back, whole pages, 0 if none do.
    """
    assert grid_tokens % page_tokens == 0
    outstanding_tokens = 2 * step_tokens if overlap else step_tokens
    slid_tokens = max(slide_tokens, page_tokens)
    if mode is WindowMode.TREE:
        # The tree keeps a page-rounded window behind the token before the last one.
        tree_tokens = align_up(max(window_tokens, page_tokens), page_tokens)
        kept_pages = exact_div(tree_tokens + page_tokens + grid_tokens, page_tokens)
        steady_tokens = tree_tokens + slid_tokens
        if grid_tokens:
            # The window behind a checkpoint that is almost a grid old. One counts once it is
            # recorded, a step late under overlap, and a coarse slide leaves whole pages behind.
            floor_tokens = align_up(window_tokens, page_tokens) + grid_tokens
            floor_tokens += step_tokens if overlap else 0
            floor_tokens += align_up(slid_tokens, page_tokens) - page_tokens
            steady_tokens = max(steady_tokens, floor_tokens)
    else:
        kept_pages = pages_touched_max(window_tokens, page_tokens)
        steady_tokens = window_tokens + slid_tokens - 1
    begun_tokens = 0
    if overlap:
        begun_tokens = outstanding_tokens
        if mode is not WindowMode.TREE:
            begun_tokens += slid_tokens - page_tokens  # decoding slides coarsely from its start
    return WindowPace(
        mode=mode,
        window_tokens=window_tokens,
        page_tokens=page_tokens,
        begun_tokens=begun_tokens,
        kept_pages=kept_pages,
        steady_pages=ceil_div(steady_tokens + outstanding_tokens, page_tokens),
    )


def peak_pages(pace: WindowPace, extent: Extent, *, loaded_pages: int = 0) -> int:
    """Return the most pages ever held of a window, the loaded ones in front included."""
    peak = _prefill_pages(pace, extent, loaded_pages)
    if extent.new_tokens and pace.steady_pages > peak:
        return max(peak, steady_pages(pace, extent, loaded_pages=loaded_pages))
    return peak


def steady_pages(pace: WindowPace, extent: Extent, *, loaded_pages: int = 0) -> int:
    """Return the most pages held of a window once the prompt is computed and its rows slid."""
    own_pages = ceil_div(extent.extend_tokens + extent.new_tokens, pace.page_tokens)
    return min(pace.steady_pages, loaded_pages + own_pages)


def pass_pages(pace: WindowPace, extent: Extent, *, loaded_pages: int = 0) -> int:
    """Return the pages that the first pass needs: what it loads, then its chunk or its window.

    The window matters when it is longer than the chunk: the passes after this one fill it.
    """
    page_tokens, chunk_tokens = pace.page_tokens, extent.chunk_tokens
    kept_pages = pace.kept_pages
    if pace.mode is WindowMode.LAG:
        kept_pages = pages_touched_max(pace.window_tokens + chunk_tokens, page_tokens)
    own_pages = ceil_div(extent.extend_tokens + extent.new_tokens, page_tokens)
    return loaded_pages + max(ceil_div(chunk_tokens, page_tokens), min(own_pages, kept_pages))


def tail_pages(
    pace: WindowPace, *, prompt_tokens: int, resident_tokens: int, reserve_tokens: int
) -> int:
    """Return the pages for a prompt computed elsewhere, of which only the window arrives.

    The window then grows by the reserve, but never past what decoding holds of it.
    """
    page_tokens = pace.page_tokens
    if pace.mode is WindowMode.TREE:
        behind_tokens = 1 + max(pace.window_tokens, page_tokens)
    else:
        behind_tokens = pace.window_tokens
    start_tokens = align_down(max(0, prompt_tokens - behind_tokens), page_tokens)
    start_tokens = max(start_tokens, resident_tokens)
    arriving_pages = ceil_div(prompt_tokens - start_tokens, page_tokens)
    grown_pages = ceil_div(prompt_tokens + reserve_tokens - start_tokens, page_tokens)
    return min(grown_pages, max(arriving_pages, pace.steady_pages))


def _prefill_pages(pace: WindowPace, extent: Extent, loaded_pages: int) -> int:
    """Return the peak from the first chunk until the prompt's last chunk is stated."""
    extend_tokens, new_tokens, chunk_tokens = extent
    page_tokens = pace.page_tokens
    # Under overlap decoding begins while all that the last chunk needed is still held.
    begun_tokens = pace.begun_tokens if new_tokens else 0
    own_tokens = extend_tokens + min(begun_tokens, new_tokens)
    own_pages = loaded_pages + ceil_div(own_tokens, page_tokens)
    if extend_tokens == chunk_tokens:
        return own_pages
    if pace.mode is WindowMode.TREE:
        # Chunks start on page edges, since all but the last end on the cut grid.
        held_pages = max(loaded_pages, pace.kept_pages)
        held_pages += ceil_div(chunk_tokens + begun_tokens, page_tokens)
    else:
        held_tokens = pace.window_tokens + chunk_tokens
        held_tokens += (
            max(chunk_tokens, begun_tokens) if pace.mode is WindowMode.LAG else begun_tokens
        )
        held_pages = pages_touched_max(held_tokens, page_tokens)
    return min(own_pages, held_pages)
