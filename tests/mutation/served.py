"""What ranks serve while a rule is left out: workloads, and the few moments that a rule is for.

Real clients and a real engine serve a short workload in a small arena, so that pages move and
requests are retracted. The modelled device finds accesses that nothing orders, and the forwards
find bytes that nobody wrote there.
"""

from typing import Any

import pytest

from kvd.errors import WorkloadError
from kvd.testing.modelled.device import ModelledDevice
from kvd.testing.modelled.ranks import ModelledStage
from kvd.testing.modelled.replay import StageReplay
from kvd.testing.modelled.world import World
from kvd.testing.small_rank import PLAN, STATE, TOTAL_BYTES, outcome
from kvd_client.client import Client
from kvd_client.device.apply import Applier
from kvd_client.launch import Step
from kvd_proto.control import Mode
from kvd_proto.outcomes import ClearSlots, Column, Move
from tests.client.overlap_parts import Gates, dirty
from tests.client.scripted_daemon import ScriptedDaemon
from tests.client.test_overlap_streams import (
    test_an_aborted_step_is_waited_for_whole_whatever_it_declared as effects_behind_an_aborted_step,
)
from tests.mutation.mutant import Patch, do_nothing
from tests.simulate.test_modelled_ranks import LIMITS, attached, requests


def serve(world: World, *, steps_ahead: int = 2) -> None:
    """Serve 24 requests with several steps in flight; the second rank follows."""
    _serve(attached(world, mode=Mode.LEADER, overlap=True), steps_ahead=steps_ahead)


def serve_one_step_at_a_time(world: World) -> None:
    """Serve with every step processed by the batch behind its launch."""
    serve(world, steps_ahead=0)


def serve_without_declaring_reads(world: World) -> None:
    """Serve with forwards that do not say when they have read the tables."""
    with Patch.context() as patch:
        patch.setattr(Step, "reads_done", do_nothing)
        serve(world)


def serve_on_two_streams(world: World) -> None:
    """Serve with forwards that take turns on two streams."""
    _serve_on_two_streams(attached(world, mode=Mode.LEADER, overlap=True), steps_ahead=2)


def serve_on_two_streams_without_overlap(world: World) -> None:
    """Serve with forwards that take turns on the allocator's stream and another one."""
    _serve_on_two_streams(attached(world, mode=Mode.LEADER), steps_ahead=0)


def clear_a_slot_that_moved(world: World) -> None:
    """Move a slot that was handed out, before the launch that is to clear it."""
    device = ModelledDevice(world)
    memory = device.allocate(TOTAL_BYTES)
    memory.bytes[:] = 0xAB
    stream = device.stream("allocator")
    applier = Applier(device=device, memory=memory, plan=PLAN, stream=stream)
    effects = [ClearSlots(Column(0)), Move(STATE, Column(0), Column(1))]
    applier.apply(1, outcome(effects, columns=[[20], [30]]))
    applier.enqueue_launch_work(stream)
    world.run()
    unit_bytes = PLAN.bands[STATE].unit_bytes
    if memory.bytes[30 * unit_bytes : 31 * unit_bytes].any():
        raise WorkloadError("state slot 30 holds bytes of whoever had it before")


def leave_a_launch_by_an_exception(world: World) -> None:
    """Leave a step that said it had read everything, and apply effects while it runs."""
    daemon = ScriptedDaemon()
    with daemon.attach() as client, Gates() as gates:
        dirty(client)
        try:
            effects_behind_an_aborted_step(daemon, client, gates)
        except (AssertionError, pytest.fail.Exception) as error:
            gates.close()
            raise WorkloadError(f"effects ran beside the aborted step: {error}") from error


def _serve_on_two_streams(stage: ModelledStage, *, steps_ahead: int) -> None:
    launch = Client.launch
    streams = {
        rank.client: (rank.client.forward_stream, rank.device.stream("second forward"))
        for rank in stage.ranks
    }
    turns = dict.fromkeys(streams, 0)

    def alternate(client: Client, **named: Any) -> Any:
        turns[client] += 1
        return launch(client, streams[client][turns[client] % 2], **named)

    with Patch.context() as patch:
        patch.setattr(Client, "launch", alternate)
        _serve(stage, steps_ahead=steps_ahead)


def _serve(stage: ModelledStage, *, steps_ahead: int) -> None:
    replay = StageReplay(
        stage, requests(24, seed=4), LIMITS, seed=4, mode=Mode.LEADER, steps_ahead=steps_ahead
    )
    while replay.run_pass():
        replay.check()
    stage.world.run()
    replay.check()
    assert replay.schedulers[0].workload.statistics().served_count == 24
