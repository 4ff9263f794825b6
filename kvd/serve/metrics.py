"""Prometheus metrics, read from the published statistics by a thread of their own."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvd.errors import ServeError
from kvd.serve.observe import Published

_BAND_LABELS = ("group", "stage", "band")
_BAND_UNITS = ("live_units", "hole_units", "pending_units", "promised_units")


class StatisticsCollector(Collector):
    """Turns the newest published document into metrics when it is scraped."""

    def __init__(self, published: Published) -> None:
        self._published = published

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        document = self._published.document
        counters = document.get("counters", {})
        batches = CounterMetricFamily("kvd_batches", "Batches answered")
        batches.add_metric([], counters.get("batches", 0))
        yield batches
        core = CounterMetricFamily("kvd_core_seconds", "Time spent deciding batches")
        core.add_metric([], counters.get("core_ns_total", 0) / 1e9)
        yield core
        errors = CounterMetricFamily("kvd_errors", "Error answers by code", labels=("code",))
        for code, count in counters.get("errors", {}).items():
            errors.add_metric([code], count)
        yield errors
        alive = GaugeMetricFamily("kvd_loop_healthy", "1 while the daemon's loop is alive")
        alive.add_metric([], 1.0 if self._published.health()["ok"] else 0.0)
        yield alive
        yield from self._groups(document.get("groups", []))

    def _groups(self, groups: list[dict[str, Any]]) -> Iterator[Metric]:
        units = GaugeMetricFamily(
            "kvd_band_units", "Units of a band by state", labels=(*_BAND_LABELS, "state")
        )
        unit_bytes = GaugeMetricFamily(
            "kvd_band_unit_bytes", "Bytes of a band's unit", labels=_BAND_LABELS
        )
        arena = GaugeMetricFamily("kvd_arena_bytes", "Bytes of an arena", labels=("group", "stage"))
        requests = GaugeMetricFamily(
            "kvd_requests", "Requests that hold a row", labels=("group", "stage")
        )
        refusals = CounterMetricFamily(
            "kvd_refusals", "Refused takes by reason", labels=("group", "stage", "reason")
        )
        quarantined = GaugeMetricFamily(
            "kvd_quarantined_bytes",
            "Bytes of arenas that a rank that ended may still touch",
            labels=("group",),
        )
        for group in groups:
            quarantined.add_metric([str(group["name"])], group["quarantined_bytes"])
            for stage in group["stages"]:
                place = [str(group["name"]), str(stage["stage"])]
                arena.add_metric(place, stage["arena_bytes"])
                requests.add_metric(place, stage["requests"])
                for reason, count in stage["refusals"].items():
                    refusals.add_metric([*place, reason], count)
                for band in stage["bands"]:
                    unit_bytes.add_metric([*place, band["name"]], band["unit_bytes"])
                    for state in _BAND_UNITS:
                        units.add_metric([*place, band["name"], state[:-6]], band[state])
        yield from (units, unit_bytes, arena, requests, refusals, quarantined)


def start_metrics(host: str, port: int, published: Published) -> None:
    """Serve metrics over HTTP; raises ServeError if the address cannot be had."""
    registry = CollectorRegistry()
    registry.register(StatisticsCollector(published))
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ServeError(f"cannot serve metrics on {host}:{port}: {error}") from error
