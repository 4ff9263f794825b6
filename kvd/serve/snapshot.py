"""The document that statistics are read from: built on the hot thread, only read afterwards.

Schema ``kvd.stats/1``: keys are added, never renamed.
"""

from time import monotonic, time
from typing import Any

from kvd.alloc.band_statistics import BandStatistics
from kvd.alloc.demand import DemandShape
from kvd.alloc.estimate import estimate_available
from kvd.engine.incarnation import Incarnation
from kvd.price.snapshot import BandSnapshot
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
    running, now_s = group.running, monotonic()
    return {
        "name": group.name,
        "model": "" if running is None else running.storage.name,
        "tp": group.tp,
        "pp": group.pp,
        "state": group.state,
        "incarnation": group.incarnation_count,
        "last_end": group.last_end,
        "waiting_for": group.missing() if group.waiting else [],
        "leaving": [
            item.describe() for item in group.memory.leaving if item.quarantined_at_s is None
        ],
        "quarantined": [
            {
                "stage": item.key[0],
                "rank": item.key[1],
                "who": item.rank,
                "reason": item.reason,
                "age_s": now_s - item.quarantined_at_s,
                "arena_bytes": item.bytes,
            }
            for item in group.memory.leaving
            if item.quarantined_at_s is not None
        ],
        "quarantined_bytes": group.memory.quarantined_bytes,
        "stages": []
        if running is None
        else [
            stage_document(incarnation, stage.storage)
            for incarnation, stage in zip(running.stages, running.storage.stages, strict=True)
        ],
    }


def stage_document(incarnation: Incarnation, plan: StoragePlan) -> Document:
    """Return what an onlooker may know of one stage: enough to answer its capacity questions."""
    engine, log = incarnation.engine, incarnation.log
    chain, snapshot = engine.chain, engine.chain.snapshot()
    return {
        "stage": plan.stage_index,
        "position": log.end_position,
        "applied": {str(rank): position for rank, position in incarnation.applied.items()},
        "requests": engine.requests.live_count,
        "values": len(engine.requests.values.of_number),
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
            _band(statistics, band_plan)
            | _capacity(band, virtual_count=empty.id_room_count)
            | {"available_units_estimate": estimate.read()}
            for statistics, band_plan, band, empty, estimate in zip(
                chain.statistics(),
                plan.bands,
                snapshot.bands,
                chain.empty.bands,
                estimate_available(chain),
                strict=True,
            )
        ],
        "blocked_bytes": snapshot.blocked,
        "quarantined_bytes": snapshot.quarantined,
        "demand": _demand(engine.requests.shape, chunk_tokens=engine.requests.chunk_tokens),
        "counters": dict(engine.counters),
        "layouts": dict(chain.relief_counts),
        "refusals": dict(engine.refusal_counts),
        "broken_checks": dict(engine.monitor.broken_count),
        "check_level": engine.monitor.level.word,
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
        "promised_units": band.promised_units,
        "fixed_units": band.fixed_units,
        "virtual_free": band.virtual_free_count,
        "absorbed_units_total": band.absorbed_units_total,
        "taken_units_total": band.taken_units_total,
        "moved_units_total": band.moved_units_total,
        "moved_bytes_total": band.moved_units_total * band.unit_bytes,
        "move_batches_total": band.move_batches_total,
        "open_uses": band.open_use_count,
        "oldest_uses": [
            {"use": str(use.kind), "by": f"{use.signal.kind} {use.signal.number}"}
            | ({} if use.unit_count is None else {"units": use.unit_count})
            for use in band.open_uses
        ],
    }


def _capacity(band: BandSnapshot, *, virtual_count: int | None) -> Document:
    """Return what capacity answers depend on besides the counts, so that others can answer them."""
    return {
        "pending_units": band.pending_units,
        "vacated_forward_units": band.vacated_forward_units,
        "vacated_network_units": band.vacated_network_units,
        "fenced_units": band.fenced_units,
        "hard_fixed": band.hard_fixed,
        "soft_fixed": band.soft_fixed,
        "movable": band.movable,
        "virtual_total": virtual_count,
    }


def _demand(shape: DemandShape, *, chunk_tokens: int) -> Document:
    """Return how requests of this stage are priced."""
    return {
        "page_tokens": shape.page_tokens,
        "chunk_tokens": chunk_tokens,
        "slots_per_request": shape.slots_per_request_slots,
        "step_tokens": shape.step_tokens,
        "overlap": shape.overlap,
        "slide_tokens": shape.slide_tokens,
        "checkpoint_tokens": shape.checkpoint_tokens,
        "tracking": shape.tracking.value,
        "context_tokens": shape.context_tokens,
    }
