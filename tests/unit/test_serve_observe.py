"""What health says of a published document, and metrics made of it."""

from time import monotonic
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvd.serve.metrics import StatisticsCollector
from kvd.serve.observe import STUCK_AFTER_S, Published


def group(**changes: Any) -> dict[str, Any]:
    """Return a group as the document shows it."""
    found: dict[str, Any] = {
        "name": "g",
        "waiting_for": [],
        "leaving": [],
        "quarantined": [],
        "quarantined_bytes": 0,
        "stages": [],
    }
    return found | changes


def published(*groups: dict[str, Any]) -> Published:
    document = Published()
    document.document = {"groups": list(groups)}
    return document


def stage(*, position: int, applied: int, entries: int) -> dict[str, Any]:
    return {
        "stage": 0,
        "position": position,
        "applied": {"0": position, "1": applied},
        "log": {"entries": entries},
        "arena_bytes": 4096,
        "requests": 3,
        "refusals": {"NO_BYTES": 2},
        "bands": [
            {
                "name": "full",
                "unit_bytes": 64,
                "live_units": 5,
                "hole_units": 1,
                "pending_units": 0,
                "promised_units": 7,
            }
        ],
    }


def test_a_daemon_that_runs_is_healthy() -> None:
    health = published(group()).health()

    assert health["ok"] is True
    assert health["problems"] == []
    assert health["schema"] == "kvd.health/1"


@pytest.mark.case("108", "109")
def test_a_loop_without_a_sign_of_life_is_the_first_problem() -> None:
    stuck = published(group(waiting_for=["stage 0 rank 1"]))
    stuck.alive_at = monotonic() - STUCK_AFTER_S - 1

    health = stuck.health()

    assert health["ok"] is False
    assert health["loop_age_s"] > STUCK_AFTER_S
    assert health["problems"][0].startswith("the daemon's loop gave no sign of life for 3.")
    assert health["problems"][1] == "group g waits for stage 0 rank 1"


def test_memory_that_is_still_in_use_is_named_with_who_uses_it() -> None:
    health = published(group(leaving=["stage 0 rank 1 (process 7)"])).health()

    assert health["problems"] == ["memory of group g is still in use by stage 0 rank 1 (process 7)"]
    assert health["ok"] is True


def test_memory_in_quarantine_is_a_problem_with_bytes_age_and_reason() -> None:
    item = {"who": "stage 0 rank 1", "reason": "it lives", "age_s": 61.4, "arena_bytes": 4096}

    health = published(group(quarantined=[item])).health()

    assert health["problems"] == [
        "4096 bytes of group g are in quarantine for 61 s, stage 0 rank 1: it lives"
    ]


def test_a_rank_far_behind_is_a_problem() -> None:
    far = group(stages=[stage(position=5000, applied=1000, entries=5000)])
    near = group(stages=[stage(position=5000, applied=4990, entries=5000)])

    assert published(far).health()["problems"] == ["a rank of group g is 4000 entries behind"]
    assert published(near).health()["problems"] == []


def test_metrics_show_bands_requests_and_refusals() -> None:
    registry = CollectorRegistry()
    registry.register(
        StatisticsCollector(published(group(stages=[stage(position=1, applied=1, entries=1)])))
    )

    lines = generate_latest(registry).decode().splitlines()

    assert 'kvd_band_units{band="full",group="g",stage="0",state="promised"} 7.0' in lines
    assert 'kvd_band_unit_bytes{band="full",group="g",stage="0"} 64.0' in lines
    assert 'kvd_requests{group="g",stage="0"} 3.0' in lines
    assert 'kvd_refusals_total{group="g",reason="NO_BYTES",stage="0"} 2.0' in lines
    assert "kvd_loop_healthy 1.0" in lines


def test_metrics_before_the_first_document_are_zero() -> None:
    registry = CollectorRegistry()
    registry.register(StatisticsCollector(Published()))

    assert "kvd_batches_total 0.0" in generate_latest(registry).decode().splitlines()
