"""Patterns: no two owners share a word, and every word is found again."""

import numpy as np
import pytest

from kvd.testing.pattern import (
    Indices,
    PatternOwner,
    entry_view,
    narrowed,
    state_words,
    token_words,
)

OWNER = PatternOwner(0, 0, 0)


def ids(*values: int) -> Indices:
    return np.array(values, dtype=np.int64)


def test_the_same_key_gives_the_same_words() -> None:
    words = token_words(OWNER, ids(5, 5), ids(0, 63), page_tokens=64)

    assert (words == token_words(OWNER, ids(5, 5), ids(0, 63), page_tokens=64)).all()


def test_no_two_tokens_of_many_requests_bands_and_ranks_share_a_word() -> None:
    positions = np.tile(np.arange(256, dtype=np.int64), 20)
    requests = np.repeat(np.arange(1, 21, dtype=np.int64), 256)
    words = [
        token_words(PatternOwner(band, stage, rank), requests, positions, page_tokens=64)
        for band in range(2)
        for stage in range(2)
        for rank in range(4)
    ]

    assert np.unique(np.concatenate(words)).size == 16 * 20 * 256


def test_versions_of_a_state_have_words_of_their_own() -> None:
    requests = np.repeat(np.arange(1, 101, dtype=np.int64), 50)
    versions = np.tile(np.arange(50, dtype=np.int64), 100)

    assert np.unique(state_words(OWNER, requests, versions)).size == 5000


@pytest.mark.parametrize(("entry_bytes", "word_bytes"), [(64, 8), (12, 4), (6, 2), (7, 1)])
def test_an_entry_is_seen_in_the_widest_word_that_divides_it(
    entry_bytes: int, word_bytes: int
) -> None:
    arena = np.zeros(1000, dtype=np.uint8)

    view = entry_view(arena, entry_bytes=entry_bytes)
    view[3] = 1

    assert view.dtype.itemsize == word_bytes
    assert view.shape == (1000 // entry_bytes, entry_bytes // word_bytes)
    assert set(arena.nonzero()[0] // entry_bytes) == {3}


@pytest.mark.parametrize("entry_bytes", [8, 4, 2, 1])
def test_no_word_is_zero_in_any_width(entry_bytes: int) -> None:
    view = entry_view(np.zeros(64, dtype=np.uint8), entry_bytes=entry_bytes)
    words = token_words(OWNER, np.full(5000, 3), np.arange(5000, dtype=np.int64), page_tokens=64)

    assert narrowed(words, view).all()
