"""What ranks of a stress run against a real daemon are told, and what they say."""

import msgspec

from kvd.testing.faults import FaultRates


class RankTask(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank of one incarnation is to do."""

    address: str
    group: str
    shape: str
    seed_index: int
    rank_index: int
    incarnation_index: int
    first_step_index: int
    operations_count_max: int
    rates: FaultRates


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How it goes: the last word of a rank, but for one that kills itself, which says it before."""

    rank_index: int
    how: str
    """``waiting`` for the other ranks, ``dying``, or at last ``done``, ``ended`` with its
    incarnation, or ``failed``."""
    step_index: int
    operations_count: int
    digest: str = ""
    """Of everything that was decided."""
    checked_words_count: int = 0
    counts: dict[str, int] = {}
    check: str = ""
    message: str = ""
