"""The document that statistics are read from: built on the hot thread, only read afterwards.

Schema ``kvd.stats/1``: keys are added, never renamed.
"""

from time import time
from typing import Any

from kvd.alloc.band import BandStatistics
from kvd.engine.incarnation import Incarnation
from kvd.serve.dispatch import Dispatcher
from kvd.serve.group import Group
from kvd_proto.memory import BandPlan, StoragePlan

SCHEMA = "kvd.stats/1"
Document = dict[str, Any]


def build_document(dispatcher: Dispatcher, *, daemon: Document, lost_replies: int) -> Document:
    """Return everything an onlooker may know at this moment."""
    median_us, p99_us = dispatcher.core_times.quantiles_us()
    return {
        "schema": SCHEMA,
        "daemon": daemon | {"published_at": time(), "draining": dispatcher.lobby.draining},
        "groups": [_group(group) for group in dispatcher.lobby.groups.values()],
        "sessions": [
            {
                "group": session.group.name,
                "stage": session.hello.stage,
                "rank": session.hello.rank,
                "mode": session.hello.mode.value,
                "program": session.hello.program,
                "pid": session.lifeline.pid,
                "uid": session.lifeline.uid,
                "following": session.following,
                "ended": None if session.ended is None else session.ended.message,
            }
            for session in dispatcher.lobby.sessions.values()
        ],
        "counters": {
            "batches": dispatcher.core_times.batch_count,
            "core_ns_total": dispatcher.core_times.total_ns,
            "core_us_p50": median_us,
            "core_us_p99": p99_us,
            "errors": dict(dispatcher.error_counts),
            "lost_replies": lost_replies,
        },
    }


def _group(group: Group) -> Document:
    running = group.running
    return {
        "name": group.name,
        "model": "" if running is None else running.storage.name,
        "tp": group.tp,
        "pp": group.pp,
        "state": group.state,
        "incarnation": group.incarnation_count,
        "last_end": group.last_end,
        "waiting_for": group.missing() if group.waiting else [],
        "leaving": [item.rank for item in group.leaving],
        "stages": []
        if running is None
        else [
            _stage(incarnation, stage.storage)
            for incarnation, stage in zip(running.stages, running.storage.stages, strict=True)
        ],
    }


def _stage(incarnation: Incarnation, plan: StoragePlan) -> Document:
    engine, log = incarnation.engine, incarnation.log
    return {
        "stage": plan.stage_index,
        "position": log.end_position,
        "applied": {str(rank): position for rank, position in incarnation.applied.items()},
        "requests": engine.requests.live_count,
        "rows": plan.row_count - 1,
        "arena_bytes": plan.arena_bytes,
        "total_bytes": plan.total_bytes,
        "sink_bytes": plan.sink_bytes,
        "page_tokens": plan.page_tokens,
        "steps": {
            "launched": engine.steps.launched_count,
            "processed": engine.steps.processed_count,
            "aborted": engine.steps.aborted_count,
        },
        "log": {
            "first_position": log.first_position,
            "entries": log.end_position - log.first_position + 1,
            "bytes": log.kept_bytes,
            "bytes_total": log.bytes_total,
        },
        "bands": [
            _band(band, band_plan)
            for band, band_plan in zip(engine.chain.statistics(), plan.bands, strict=True)
        ],
        "counters": dict(engine.counters),
        "layouts": dict(engine.chain.relief_counts),
        "refusals": dict(engine.refusal_counts),
        "broken_checks": dict(engine.monitor.broken_count),
        "check_level": engine.monitor.level.name.lower(),
    }


def _band(band: BandStatistics, plan: BandPlan) -> Document:
    return {
        "name": band.name,
        "kind": plan.lifetime.value,
        "chain_kind": band.chain_kind,
        "entry_bytes": plan.entry_bytes,
        "unit_bytes": band.unit_bytes,
        "page_tokens": plan.page_tokens,
        "window_tokens": plan.window_tokens,
        "unit_index_min": band.unit_index_min,
        "unit_index_end": band.unit_index_end_count,
        "span_start": band.span_start_index,
        "span_end": band.span_end_index,
        "live_units": band.live_units,
        "hole_units": band.hole_units,
        "pending_units": 0,
        "promised_units": band.promised_units,
        "virtual_free": band.virtual_free_count,
        "absorbed_units_total": band.absorbed_units_total,
        "taken_units_total": band.taken_units_total,
        "moved_units_total": band.moved_units_total,
        "moved_bytes_total": band.moved_units_total * band.unit_bytes,
        "move_batches_total": band.move_batches_total,
    }
