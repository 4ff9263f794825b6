"""Who is there, as a scheduler of the stress harness knows by the log."""

from kvd.testing.modelled.memory import grains_of
from kvd.testing.stress.contents import Contents
from kvd.testing.stress.model import Model
from kvd.testing.stress.shapes import stress_stage
from kvd_proto.errors import ErrorCode
from kvd_proto.operations import Processed
from kvd_proto.outcomes import Done, Failed, Outcome


def test_a_step_is_processed_only_where_that_was_no_wrong_use() -> None:
    """A rank behind a daemon reads what failed in the log, as it reads everything."""
    plan = stress_stage("full", overlap=True).storage.storage
    model = Model(Contents(plan, cell_bytes=grains_of(plan)[0].cell_bytes))
    model.note(Processed(1), Outcome(Done()))
    model.note(Processed(3), Outcome(Failed(ErrorCode.STEP_ORDER.value, "step 2 is next")))
    assert model.processed_count == 1
