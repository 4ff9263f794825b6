"""What a band tells about itself."""

from kvd.alloc.checks import CheckLevel
from kvd_proto.operations import Free, Launch
from tests.stateful.ranks import int64s
from tests.unit.test_engine_steps import busy


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
