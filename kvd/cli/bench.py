"""``kvd bench``: measure kvd beside a plain echo of the same run.

A benchmark informs: it exits 0 also when a target is missed.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from kvd.cli.output import print_json, print_table
from kvd.cli.plot import check_plot_path, draw_capacity, save_figure
from kvd.cli.query import fetch_statistics, read_statistics
from kvd.errors import SettingError, WorkloadError
from kvd.presets import preset_names
from kvd.setting import parse_bytes, show_bytes
from kvd.testing.bench_apply import DEVICES, ApplyBench
from kvd.testing.bench_capacity import (
    RIVALS,
    CapacityFailure,
    CapacityRun,
    CapacitySpec,
    measure_capacity,
    shared_presets,
)
from kvd.testing.bench_core import measure_core, measure_feasible, measure_levels
from kvd.testing.bench_decode import CHUNK_TOKENS
from kvd.testing.bench_figures import NS_PER_US, Figure
from kvd.testing.bench_iteration import measure_iteration
from kvd.testing.bench_moves import PLACES, measure_moves
from kvd.testing.bench_rpc import CoreTotals, RpcSpec, measure_rpc
from kvd.testing.bench_scale import measure_scale
from kvd.testing.local import LocalDaemon
from kvd.testing.traces import EXCERPT_NAMES, excerpt, read_trace
from kvd_proto.errors import KvdError

SCHEMA: Final = "kvd.bench/1"
PROFILED_ROWS: Final = 24
"""Functions that `bench apply --profile` shows."""
REQUESTS_COUNT: Final = 256
PAGES: Final = "64,1"
PACES_MS: Final = (0, 5)
SECONDS: Final = 10.0
CORE_STEPS_COUNT: Final = 400
CHECKED_STEPS_COUNT: Final = 200
PAGE_TOKENS_MAX: Final = 4096
CAPACITY_PAGE_TOKENS: Final = 64
BUDGETS: Final = ("40GiB", "80GiB")
MOVED: Final = "2GiB"

_requests_option = click.option(
    "--requests",
    "requests_count",
    type=click.IntRange(1, 4096),
    default=REQUESTS_COUNT,
    help=f"Running requests ({REQUESTS_COUNT}; the targets are about so many).",
)
_page_option = click.option(
    "--page",
    "pages",
    default=PAGES,
    metavar="LIST",
    help=f"Tokens per page, each in turn, up to {CHUNK_TOKENS} ({PAGES}).",
)
_seed_option = click.option(
    "--seed", "seed_index", type=click.IntRange(0), default=1, help="Draws the prompts (1)."
)
_device_option = click.option(
    "--device",
    "device_name",
    type=click.Choice(tuple(PLACES)),
    default="cuda",
    help="Where the memory lies (cuda; the targets are about an H200).",
)
_json_option = click.option("--json", "as_json", is_flag=True, help=f"Print {SCHEMA}.")


@click.group()
def bench() -> None:
    """Measure kvd beside a plain echo in the same run; exits 0 also when a target is missed."""


@bench.command()
@_requests_option
@_page_option
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 3600),
    default=SECONDS,
    help=f"For each page size and pace ({SECONDS:g}).",
)
@click.option("--busy-poll", is_flag=True, help="Let the daemon spin instead of sleeping.")
@_seed_option
@_json_option
def rpc(
    requests_count: int,
    pages: str,
    seconds: float,
    busy_poll: bool,
    seed_index: int,
    as_json: bool,
) -> None:
    """Decode iterations through a daemon of their own, tight and paced at 5 ms.

    A round trip is the batch block of the client, from entering it to leaving it: launch,
    processed, advance and take of all requests; every few steps also the free of a request that
    ended, the admission of its replacement with its prompt, and its joining one step later.
    """
    figures: list[Figure] = []
    arguments = ("--busy-poll-us", "always") if busy_poll else ()
    for page_tokens in _page_sizes(pages):
        for pace_ms in PACES_MS:
            spec = RpcSpec(
                requests_count=requests_count,
                page_tokens=page_tokens,
                pace_ms=pace_ms,
                seconds=seconds,
                busy_poll=busy_poll,
                seed_index=seed_index,
            )
            # Each has a daemon of its own, so that its statistics are about nothing else.
            with LocalDaemon(arguments=arguments) as daemon:
                figures += measure_rpc(
                    spec,
                    socket_path=daemon.socket_path,
                    core_totals=partial(_core_totals, Path(f"{daemon.socket_path}.stats")),
                )
    _report("rpc", figures, as_json=as_json)


@bench.command()
@_requests_option
@_page_option
@click.option(
    "--steps",
    "steps_count",
    type=click.IntRange(1, 100_000),
    default=CORE_STEPS_COUNT,
    help=f"Decode steps per repeat ({CORE_STEPS_COUNT}).",
)
@_seed_option
@_json_option
def core(requests_count: int, pages: str, steps_count: int, seed_index: int, as_json: bool) -> None:
    """Decode iterations in the core alone, from body bytes to reply bytes, and `feasible`.

    A tight loop flatters: behind a socket the same step runs on colder caches. The time that the
    daemon itself sees is part of `kvd bench rpc`.
    """
    figures: list[Figure] = []
    for page_tokens in _page_sizes(pages):
        figures += measure_core(
            requests_count=requests_count,
            page_tokens=page_tokens,
            steps_count=steps_count,
            seed_index=seed_index,
        )
    figures += measure_feasible()
    _report("core", figures, as_json=as_json)


@bench.command()
@_requests_option
@_page_option
@click.option(
    "--steps",
    "steps_count",
    type=click.IntRange(1, 100_000),
    default=CHECKED_STEPS_COUNT,
    help=f"Decode steps per repeat ({CHECKED_STEPS_COUNT}; strict takes a few, once).",
)
@_seed_option
@_json_option
def checks(
    requests_count: int, pages: str, steps_count: int, seed_index: int, as_json: bool
) -> None:
    """Decode iterations at each level of checks, the work behind the reply included."""
    figures: list[Figure] = []
    for page_tokens in _page_sizes(pages):
        figures += measure_levels(
            requests_count=requests_count,
            page_tokens=page_tokens,
            steps_count=steps_count,
            seed_index=seed_index,
        )
    _report("checks", figures, as_json=as_json)


@bench.command()
@click.option(
    "--trace",
    "trace_paths",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Request trace, any number of times (the three excerpts in the package).",
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    type=click.Choice(preset_names()),
    metavar="NAME",
    help="Model, any number of times (all with more than one band).",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    default=BUDGETS,
    metavar="SIZE",
    help=f"Bytes per rank, any number of times ({', '.join(BUDGETS)}).",
)
@click.option(
    "--page",
    "page_tokens",
    type=click.IntRange(1, PAGE_TOKENS_MAX),
    default=CAPACITY_PAGE_TOKENS,
    help=f"Tokens per page ({CAPACITY_PAGE_TOKENS}).",
)
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the table, as .png or .svg.",
)
@_json_option
def capacity(
    trace_paths: tuple[Path, ...],
    presets: tuple[str, ...],
    budgets: tuple[str, ...],
    page_tokens: int,
    plot_path: Path | None,
    as_json: bool,
) -> None:
    """Fill arenas until the first request is refused; bookkeeping only, no memory.

    Requests come in the trace's order and take their whole length; none ends. Beside kvd stand a
    static split chosen with hindsight for the trace, a default one, and equal pages by least common
    multiple, all keeping the same promises.
    """
    if plot_path is not None:
        # Before minutes of measuring: a name that cannot be drawn to, or no library that draws.
        check_plot_path(plot_path)
    traces = [read_trace(path) for path in trace_paths] or [excerpt(name) for name in EXCERPT_NAMES]
    sizes = [parse_bytes(text, name="--budget") for text in budgets]
    specs = [
        CapacitySpec(trace, preset, budget_bytes, page_tokens)
        for trace in traces
        for preset in presets or shared_presets()
        for budget_bytes in sizes
    ]
    runs, failures = _measure_cells(specs)
    if plot_path is not None and runs:
        save_figure(draw_capacity(runs), plot_path)
    if as_json:
        figures = [figure.fields() for run in runs for figure in run.figures()]
        document = {
            "results": figures,
            "runs": [run.fields() for run in runs],
            "failures": [failure.fields() for failure in failures],
        }
        print_json(SCHEMA, {"bench": "capacity", **document})
    elif runs:
        print_table("kvd bench capacity", _CAPACITY_COLUMNS, [_capacity_row(run) for run in runs])
    if failures:
        raise WorkloadError(
            f"{len(failures)} of {len(specs)} cells failed: "
            + "; ".join(f"{failure.spec.name}: {failure.message}" for failure in failures)
        )


def _measure_cells(
    specs: Sequence[CapacitySpec],
) -> tuple[list[CapacityRun], list[CapacityFailure]]:
    """Measure cells one by one; one that fails costs the others nothing."""
    runs: list[CapacityRun] = []
    failures: list[CapacityFailure] = []
    for spec in specs:
        try:
            run = measure_capacity(spec)
        except KvdError as error:
            failures.append(CapacityFailure(spec, str(error)))
            click.echo(f"{spec.name}: failed: {error}", err=True)
            continue
        runs.append(run)
        click.echo(f"{run.name}: {run.useful_percent:.1f} % useful", err=True)
    return runs, failures


@bench.command()
@_json_option
def scale(as_json: bool) -> None:
    """Take, free and ask for capacity with 10^3 to 10^6 pages per band, each size in turns."""
    _report("scale", measure_scale(), as_json=as_json)


@bench.command()
@_device_option
@click.option(
    "--size",
    default=MOVED,
    metavar="SIZE",
    help=f"Bytes to move for each page size; the arena has four times as many ({MOVED}).",
)
@_seed_option
@_json_option
def moves(device_name: str, size: str, seed_index: int, as_json: bool) -> None:
    """Move random pages to random places, beside one plain copy of as many bytes."""
    moved_bytes = parse_bytes(size, name="--size")
    figures = measure_moves(device_name, moved_bytes=moved_bytes, seed_index=seed_index)
    _report("moves", figures, as_json=as_json)


@bench.command()
@click.option(
    "--device",
    "device_name",
    type=click.Choice(tuple(DEVICES)),
    default="cuda",
    help="Where the memory lies (cuda; the target is about an H200); idle is cuda without a GPU.",
)
@_requests_option
@_page_option
@click.option(
    "--steps",
    "steps_count",
    type=click.IntRange(1, 100_000),
    default=CORE_STEPS_COUNT,
    help=f"Decode steps ({CORE_STEPS_COUNT}).",
)
@click.option("--profile", "profiles", is_flag=True, help="Say which function takes how much.")
@_seed_option
@_json_option
def apply(
    device_name: str,
    requests_count: int,
    pages: str,
    steps_count: int,
    profiles: bool,
    seed_index: int,
    as_json: bool,
) -> None:
    """Check, assemble and enqueue the effects of decode steps: what they cost a rank's host."""
    if profiles and as_json:
        raise SettingError("--profile prints tables, so it does not go with --json")
    figures: list[Figure] = []
    benches = [
        ApplyBench(
            device_name,
            requests_count=requests_count,
            page_tokens=page_tokens,
            steps_count=steps_count,
            seed_index=seed_index,
        )
        for page_tokens in _page_sizes(pages)
    ]
    for one in benches:
        figures += one.measure()
    _report("apply", figures, as_json=as_json)
    for one in benches if profiles else ():
        print_table(
            f"{one.name}: a step of the usual kind, without what profiling adds",
            ("function", "calls", "us"),
            [
                (row.function, f"{row.calls:.1f}", f"{row.self_us:.2f}")
                for row in one.profile()[:PROFILED_ROWS]
            ],
        )


@bench.command()
@_requests_option
@_seed_option
@_json_option
def iteration(requests_count: int, seed_index: int, as_json: bool) -> None:
    """Run an engine's loop on a GPU with kvd and with pages assigned beforehand, in turns."""
    with LocalDaemon(arguments=("--device", "cuda")) as daemon:
        figures = measure_iteration(
            f"ipc://{daemon.socket_path}", requests_count=requests_count, seed_index=seed_index
        )
    _report("iteration", figures, as_json=as_json)


_CAPACITY_COLUMNS: Final = (
    "trace",
    "model",
    "budget",
    "requests",
    "refused",
    "claimed %",
    "met",
    "useful %",
    "hindsight %",
    "default %",
    "LCM %",
)


def _capacity_row(run: CapacityRun) -> tuple[str, ...]:
    unclaimed, *_ = run.figures()
    return (
        run.spec.trace.name,
        run.spec.preset,
        str(show_bytes(run.spec.budget_bytes)),
        f"{run.admitted_count:,}",
        run.reason,
        f"{run.claimed_percent:.2f}",
        _met(unclaimed),
        f"{run.useful_percent:.2f}",
        *(f"{run.rival_percent(name):.2f}" for name in RIVALS),
    )


def _page_sizes(pages: str) -> list[int]:
    """Return the page sizes of a list; raises SettingError naming what is none."""
    sizes: list[int] = []
    for text in pages.split(","):
        # A page is no longer than a chunk of a prompt, which the workload fixes.
        if not text.strip().isdecimal() or not 1 <= int(text) <= CHUNK_TOKENS:
            raise SettingError(
                f"--page {pages!r}: {text!r} is no page size; 1 to {CHUNK_TOKENS} tokens, "
                f"several with commas between them"
            )
        sizes.append(int(text))
    return sizes


def _core_totals(stats_path: Path) -> CoreTotals:
    counters = read_statistics(fetch_statistics(stats_path)).counters
    return CoreTotals(
        batch_count=counters["batches"],
        total_us=counters["core_ns_total"] / NS_PER_US,
        p50_us=counters["core_us_p50"],
        p99_us=counters["core_us_p99"],
    )


def _report(name: str, figures: Sequence[Figure], *, as_json: bool) -> None:
    if as_json:
        print_json(SCHEMA, {"bench": name, "results": [figure.fields() for figure in figures]})
        return
    print_table(
        f"kvd bench {name}",
        ("figure", "value", "unit", "target", "met"),
        [
            (
                figure.name,
                # Ratios come within a percent of their targets.
                f"{figure.value:.4f}" if figure.unit.startswith("x") else f"{figure.value:.2f}",
                figure.unit,
                "" if figure.target is None else f"<= {figure.target:.5g}",
                _met(figure),
            )
            for figure in figures
        ],
    )


def _met(figure: Figure) -> str:
    return "" if figure.ok is None else ("yes" if figure.ok else "NO")
