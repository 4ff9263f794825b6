"""What a request asks of every band, found by going through every state that it may be in.

Two numbers say what a request holds: the tokens that it stated as computed, and those that it took.
Pages wholly behind the window of the former were given back, and everything up to the latter is
held. So every computed length is tried, with as much taken ahead of it as may be; no formula of
`kvd.alloc.demand` is used.

This knows what stages of stress programs have: a prompt without hits, windows that slide as soon as
tokens are stated, and a state slot per request.
"""

from functools import lru_cache

from kvd.alloc.demand import DemandShape
from kvd_proto.memory import Lifetime

PRICES_KEPT_COUNT = 4096


def peak_units(
    shape: DemandShape, *, prompt_tokens: int, new_tokens: int, chunk_tokens: int
) -> tuple[int, ...]:
    """Return the most units of every band that a request ever holds."""
    steps_tokens = _steps_tokens(shape)
    end_tokens = _end_tokens(shape, prompt_tokens, new_tokens)
    begun_tokens = prompt_tokens
    ahead_tokens = chunk_tokens
    if shape.overlap:
        # Beside a chunk that is not stated there is another one, or there are the first steps.
        begun_tokens = min(end_tokens, prompt_tokens + steps_tokens)
        ahead_tokens += max(chunk_tokens, steps_tokens if new_tokens else 0)
    units: list[int] = []
    for lifetime, window_tokens in zip(shape.lifetimes, shape.window_tokens, strict=True):
        if lifetime is Lifetime.STATE:
            units.append(shape.slots_per_request_slots)
        elif lifetime is Lifetime.FULL:
            units.append(_pages(end_tokens, shape.page_tokens))
        else:
            in_prompt = _most_pages(window_tokens, shape.page_tokens, ahead_tokens, begun_tokens)
            behind = _most_pages(window_tokens, shape.page_tokens, steps_tokens, end_tokens)
            units.append(max(in_prompt, behind if new_tokens else 0))
    return tuple(units)


def steady_pages(
    shape: DemandShape, *, window_tokens: int, prompt_tokens: int, new_tokens: int
) -> int:
    """Return the most pages of a window that a request holds while it takes step after step."""
    end_tokens = _end_tokens(shape, prompt_tokens, new_tokens)
    return _most_pages(window_tokens, shape.page_tokens, _steps_tokens(shape), end_tokens)


def _steps_tokens(shape: DemandShape) -> int:
    """Return the tokens of all steps that are taken before the first of them is stated."""
    return shape.step_tokens * (2 if shape.overlap else 1)


def _end_tokens(shape: DemandShape, prompt_tokens: int, new_tokens: int) -> int:
    """Return the length that a request reaches: its last steps go on until its end is seen."""
    end_tokens = prompt_tokens + new_tokens
    if new_tokens:
        # All steps in flight but the token that is the last one were taken for nothing.
        beyond_tokens = _steps_tokens(shape) - 1
        end_tokens = max(end_tokens, min(end_tokens + beyond_tokens, shape.context_tokens))
    return end_tokens


@lru_cache(maxsize=PRICES_KEPT_COUNT)
def _most_pages(window_tokens: int, page_tokens: int, ahead_tokens: int, end_tokens: int) -> int:
    """Return the most pages held at any computed length, with so many tokens taken ahead of it."""
    most_pages = 0
    for computed_tokens in range(end_tokens):
        taken_tokens = min(computed_tokens + ahead_tokens, end_tokens)
        gone_pages = max(0, computed_tokens - window_tokens) // page_tokens
        most_pages = max(most_pages, _pages(taken_tokens, page_tokens) - gone_pages)
    return most_pages


def _pages(tokens: int, page_tokens: int) -> int:
    """Return the pages that tokens from the first one on lie in."""
    return len(range(0, tokens, page_tokens))
