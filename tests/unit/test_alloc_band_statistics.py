"""What a band tells about itself."""

import pytest

from kvd.alloc.band_statistics import OPEN_USES_SHOWN_MAX
from kvd.alloc.checks import CheckLevel
from kvd.alloc.uses import UseKind
from kvd_proto.operations import Free, Launch
from tests.stateful.ranks import int64s
from tests.stateful.values import FULL, backup, engine_with_value, pages, post
from tests.unit.test_engine_steps import busy


@pytest.mark.case("62")
def test_a_bands_oldest_uses_are_told_with_kind_key_and_units() -> None:
    engine = engine_with_value()
    ids = pages(engine, FULL)
    for operation in (post(7, FULL, ids[:2]), backup(3, FULL, ids), post(8, FULL, ids[:1])):
        engine.decide(0, operation)
    engine.decide(0, Launch(1, 0))
    statistics = engine.chain.statistics()[FULL]
    assert statistics.open_use_count == 4
    assert [(use.kind, use.signal.number, use.unit_count) for use in statistics.open_uses] == [
        (UseKind.FORWARD_WRITE, 1, None),
        (UseKind.NETWORK_SEND, 7, 2),
        (UseKind.COPY_READ, 3, 8),
        (UseKind.NETWORK_SEND, 8, 1),
    ]


def test_only_the_oldest_uses_are_told_but_all_are_counted() -> None:
    engine = engine_with_value()
    for number in range(1, OPEN_USES_SHOWN_MAX + 5):
        engine.decide(0, backup(number, FULL, pages(engine, FULL)))
    statistics = engine.chain.statistics()[FULL]
    assert statistics.open_use_count == OPEN_USES_SHOWN_MAX + 4
    shown = [use.signal.number for use in statistics.open_uses]
    assert shown == list(range(1, OPEN_USES_SHOWN_MAX + 1))


def test_a_bands_counts_name_what_pends_apart_from_holes() -> None:
    engine = busy(Launch(1, 0))
    before = engine.chain.statistics()
    engine.decide(0, Free(int64s([1])))
    assert engine.monitor.level is CheckLevel.STRICT
    for old, new in zip(before, engine.chain.statistics(), strict=True):
        freed = old.live_units - new.live_units
        assert freed > 0
        assert (new.pending_units, new.hole_units) == (freed, old.hole_units)
        assert new.span_end_index - new.span_start_index == (
            new.live_units + new.hole_units + new.pending_units
        )
