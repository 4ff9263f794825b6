"""What has to hold while nothing runs: bytes of all live units, the sink, and the tables."""

import numpy as np

from kvd.testing.stress.played_run import FinishedRun


def check_at_rest(run: FinishedRun) -> None:
    """Compare all live units of every rank, its sink and its tables while nothing runs."""
    contents = run.model.contents
    for band in contents.bands:
        virtual = band.places.nonzero()[0]
        words = band.words_of(band.places[virtual])
        tags = band.expected_words(virtual)

        def describe(place: int, name: str = band.name, ids: object = virtual) -> str:
            return f"band {name}, one of ids {ids}"

        for rank in run.ranks:
            rank.check_at_rest(words, tags, describe)
    if contents.sink_is_zero:
        zeros = np.zeros(contents.sink_words.size, dtype=np.int64)
        for rank in run.ranks:
            rank.check_at_rest(contents.sink_words, zeros, lambda place: "the sink")
    for rank in run.ranks:
        rank.client.check_tables()
