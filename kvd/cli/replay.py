"""``kvd replay``: serve a real request trace through client processes, and check every byte."""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from kvd.cli.output import print_json, shown_progress
from kvd.cli.picture import render_map
from kvd.cli.watch import Watch
from kvd.declare.model import declare_model
from kvd.errors import ServeError, SettingError
from kvd.plan.stage import plan_stages
from kvd.presets import preset_config, read_config
from kvd.setting import parse_bytes
from kvd.testing.local import LocalDaemon
from kvd.testing.messages import RankProgress
from kvd.testing.painter import Corruption
from kvd.testing.passes import Permille, WorkloadLimits, WorkloadRequest
from kvd.testing.processes import ending_of
from kvd.testing.replay import ReplayOutcome, ReplaySpec, run_replay
from kvd.testing.report import ReplayReport
from kvd.testing.traces import Selection, excerpt, read_trace, select_requests
from kvd_proto.control import Mode
from kvd_proto.memory import DeclaredConfig, SizingInputs
from kvd_proto.scalars import RequestId

SCHEMA: Final = "kvd.replay/1"

PRESET: Final = "gpt-oss-20b"
# A request of the excerpt has 1,900 tokens on average, which take 24 MB of full-attention pages per
# rank; 48 such requests do not fit the budget, so they wait for one another's memory.
BUDGET: Final = "768MiB"
RUNNING_COUNT: Final = 48
REQUEST_COUNT: Final = 200
TOKENS_MAX: Final = 4096
CHUNK_TOKENS: Final = 512
PROMPT_TOKENS: Final = 2048
"""Prompt tokens per step over all requests: four chunks."""
ASKED_COUNT: Final = 4
RESERVE_BATCH_COUNT: Final = 16
"""Promises lapse soon after a request was let in, so that more are let in than can all grow to
their full length: what makes an arena fill up, move its pages, and end some requests early."""
GROWTH_PERMILLE: Final = Permille(0)
IDLE_STEP_COUNT: Final = 0
SAMPLE_STEP_COUNT: Final = 32
SAMPLE_REQUEST_COUNT: Final = 2
DEADLINE_MS: Final = 30_000

MAP_WIDTH_CELLS: Final = 100
EXIT_FOUND: Final = 1

EPILOG: Final = """A model with states, a window and full attention has a band in the middle of the
arena. It is relocated, and everything else happens too, within some ten seconds, in

\b
    kvd replay --preset phi-4-mini-flash --tp 1 --requests 24
        --budget 400MiB --chunk 128 --reserve-batches 1 --idle-every 40
"""

_CORRUPTION: Final = re.compile(r"(\d+)(?::(\w+)(?::(\d+)(:moved)?)?)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    demo: bool
    preset: str | None
    model_path: Path | None
    tp_count: int
    mode: str
    trace_path: Path | None
    request_count: int
    tokens_max: int
    budget: str
    page_tokens: int | None
    chunk_tokens: int
    running_count: int
    reserve_batch_count: int
    growth_permille: Permille
    idle_step_count: int
    seed_index: int
    socket_path: Path | None
    overlap: bool
    device: str
    round_count: int
    forward_us: float
    corrupt: str | None
    as_json: bool


@click.command(epilog=EPILOG)
@click.option("--demo", is_flag=True, help="Run the defaults, with a word on what they are.")
@click.option("--preset", metavar="NAME", help=f"A packaged model shape ({PRESET}).")
@click.option(
    "--model",
    "model_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A Hugging Face config.json, or its folder.",
)
@click.option("--tp", "tp_count", type=click.IntRange(1, 64), default=2, help="Rank processes (2).")
@click.option(
    "--mode",
    type=click.Choice([Mode.MIRRORED.value, Mode.LEADER.value]),
    default=Mode.MIRRORED.value,
    help="All ranks ask the same (mirrored), or one leads and the others follow the log.",
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Mooncake JSON lines or Azure CSV (an excerpt of Mooncake's conversations).",
)
@click.option(
    "--requests",
    "request_count",
    type=click.IntRange(1),
    default=REQUEST_COUNT,
    help=f"Requests to serve ({REQUEST_COUNT}).",
)
@click.option(
    "--tokens-max",
    type=click.IntRange(1),
    default=TOKENS_MAX,
    help=f"Pass over requests longer than this, prompt and answer ({TOKENS_MAX}).",
)
@click.option("--budget", default=BUDGET, help=f"Memory per rank ({BUDGET}).")
@click.option("--page", "page_tokens", type=click.IntRange(1), help="Tokens per page (64).")
@click.option(
    "--chunk",
    "chunk_tokens",
    type=click.IntRange(1),
    default=CHUNK_TOKENS,
    help=f"Prompt tokens of a request per step ({CHUNK_TOKENS}).",
)
@click.option(
    "--running",
    "running_count",
    type=click.IntRange(1),
    default=RUNNING_COUNT,
    help=f"Requests that hold memory at a time ({RUNNING_COUNT}).",
)
@click.option(
    "--reserve-batches",
    "reserve_batch_count",
    type=click.IntRange(0),
    default=RESERVE_BATCH_COUNT,
    help="Batches after which an admitted request's promise lapses, 0: never "
    f"({RESERVE_BATCH_COUNT}). Then takes may find no room, and retract.",
)
@click.option(
    "--growth",
    "growth_permille",
    type=click.IntRange(0, 1000),
    default=GROWTH_PERMILLE,
    metavar="PERMILLE",
    help="Of what requests with lapsed promises may still grow, the part that new ones must leave "
    f"room for ({GROWTH_PERMILLE}).",
)
@click.option(
    "--idle-every",
    "idle_step_count",
    type=click.IntRange(0),
    default=IDLE_STEP_COUNT,
    metavar="STEPS",
    help=f"Launch nothing for one iteration after so many steps, 0: never ({IDLE_STEP_COUNT}).",
)
@click.option(
    "--seed", "seed_index", type=click.IntRange(0), default=1, help="Chooses the samples (1)."
)
@click.option(
    "--overlap/--no-overlap",
    default=True,
    help="Launch a step while the one before it still runs, or wait for it first (--overlap).",
)
@click.option(
    "--device",
    type=click.Choice(["host", "cuda"]),
    default="host",
    help="Where arenas lie, and who writes them: threads, or kernels on a GPU (host).",
)
@click.option(
    "--rounds",
    "round_count",
    type=click.IntRange(1, 1000),
    default=1,
    help="Serve the chosen requests so many times over (1).",
)
@click.option(
    "--forward-us",
    type=click.FloatRange(0, 1_000_000),
    default=0,
    metavar="MICROSECONDS",
    help="Time that each forward takes on a GPU beside what it writes and checks (0).",
)
@click.option(
    "--connect",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Socket of a running daemon (one of its own, in a private folder).",
)
@click.option(
    "--corrupt",
    metavar="REQUEST[:BAND[:PAGE[:moved]]]",
    help="Flip one byte after it was written, or after it was moved, to see that it is found.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def replay(context: click.Context, /, **given: Any) -> None:
    """Drive a request trace through rank processes and check all bytes.

    Every rank writes a pattern of its own into each page it is granted and compares it at
    intervals, before its request is freed and at the end. Exits with 1 if anything was not as it
    should be.

    Where promises lapse, takes that find no room retract requests: those with the fewest generated
    tokens first, the longest prompt first among equals, and never the last one. They are admitted
    again and computed again. What a retracted request held is gone when the answer comes, so it is
    compared by samples only, in which the next victim always is.
    """
    options = Options(**given)
    selection = select_requests(
        excerpt() if options.trace_path is None else read_trace(options.trace_path),
        request_count=options.request_count,
        tokens_max=options.tokens_max,
    )
    selection = replace(selection, requests=selection.requests * options.round_count)
    spec = _spec(options, selection)
    if not options.as_json:
        _introduce(options, selection)
    with _own_daemon(options) as daemon:
        socket_path = options.socket_path if daemon is None else daemon.socket_path
        watch = Watch(Path(f"{socket_path}.stats"), spec.group)
        outcome = _run(spec, f"ipc://{socket_path}", watch, as_json=options.as_json)
        if outcome.problems and daemon is not None:
            click.echo(f"the daemon's last words:\n{daemon.complaints()}", err=True)
    report = ReplayReport(
        selection=selection,
        outcome=outcome,
        corruption=spec.corruption,
        left_units=watch.left_units,
        motion=watch.motion,
    )
    _conclude(report, watch, as_json=options.as_json)
    if report.findings:
        context.exit(EXIT_FOUND)


# ---- from options to a replay ---------------------------------------------------------------


def _spec(options: Options, selection: Selection) -> ReplaySpec:
    declaration = _declaration(options)
    return ReplaySpec(
        group=f"replay-{os.getpid()}",
        tp_count=options.tp_count,
        mode=Mode(options.mode),
        declaration=declaration,
        sizing=SizingInputs(
            budget_bytes=parse_bytes(options.budget, name="--budget"),
            page_tokens=options.page_tokens,
            context_tokens=max(request.total_tokens for request in selection.requests),
            running_requests_count=options.running_count,
            chunk_tokens=options.chunk_tokens,
        ),
        requests=tuple(
            WorkloadRequest(
                request_id=RequestId(nth),
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
            )
            for nth, request in enumerate(selection.requests, 1)
        ),
        limits=WorkloadLimits(
            running_count_max=options.running_count,
            chunk_tokens_max=options.chunk_tokens,
            prompt_tokens_max=max(options.chunk_tokens, PROMPT_TOKENS),
            asked_count_max=ASKED_COUNT,
            sample_step_count=SAMPLE_STEP_COUNT,
            sample_request_count=SAMPLE_REQUEST_COUNT,
            seed_index=options.seed_index,
            reserve_batch_count=options.reserve_batch_count,
            growth_permille=options.growth_permille,
            idle_step_count=options.idle_step_count,
        ),
        deadline_ms=DEADLINE_MS,
        overlap=options.overlap,
        device=options.device,
        forward_us=options.forward_us,
        corruption=_corruption(options, selection, declaration),
    )


def _declaration(options: Options) -> DeclaredConfig:
    if options.model_path is None:
        name = options.preset or PRESET
        return DeclaredConfig(config_json=preset_config(name), name=name)
    if options.preset is not None:
        raise SettingError("--preset and --model exclude each other: both name the model")
    return DeclaredConfig(config_json=read_config(options.model_path), name=options.model_path.stem)


def _corruption(
    options: Options, selection: Selection, declaration: DeclaredConfig
) -> Corruption | None:
    """Return the byte to flip; a state slot counts as page 0.

    Raises SettingError for a request or band that the replay does not have.
    """
    if options.corrupt is None:
        return None
    matched = _CORRUPTION.fullmatch(options.corrupt)
    if matched is None:
        raise SettingError(
            f"--corrupt is {options.corrupt!r}, allowed is REQUEST[:BAND[:PAGE[:moved]]] as "
            "17:full:3"
        )
    number, band, page = matched[1], matched[2] or "full", matched[3] or "0"
    count = len(selection.requests)
    if not 1 <= int(number) <= count:
        raise SettingError(f"--corrupt names request {number}, allowed is 1 to {count}")
    model = declare_model(declaration, tp_count=options.tp_count)
    bands = [planned.name for stage in plan_stages(model) for planned in stage.bands]
    if band not in bands:
        raise SettingError(f"--corrupt names band {band!r}, allowed is one of {', '.join(bands)}")
    return Corruption(RequestId(int(number)), band, int(page), after_move=matched[4] is not None)


@contextmanager
def _own_daemon(options: Options) -> Generator[LocalDaemon | None, None, None]:
    """Give a daemon that lives as long as the context, or none if a running one is named."""
    if options.socket_path is not None:
        yield None
        return
    with LocalDaemon(arguments=("--device", options.device)) as daemon:
        if not options.as_json:
            socket_path = daemon.socket_path
            click.echo(f"daemon: process {daemon.pid} and its holder, --socket {socket_path}\n")
        yield daemon
    if daemon.returncode != 0:
        raise ServeError(
            f"the daemon did not stop cleanly: {ending_of(daemon.returncode)}; "
            f"{daemon.complaints()}"
        )


def _run(spec: ReplaySpec, address: str, watch: Watch, *, as_json: bool) -> ReplayOutcome:
    with shown_progress("requests", total_count=len(spec.requests), is_wanted=not as_json) as show:

        def observe(progress: RankProgress) -> None:
            tokens, passes = progress.served_tokens, progress.pass_count
            show(progress.served_count, f"{tokens:,} tokens, {passes:,} iterations")
            watch.look()

        return run_replay(spec, address=address, observe=observe, on_end=watch.settle)


# ---- printing -------------------------------------------------------------------------------


def _introduce(options: Options, selection: Selection) -> None:
    model = options.model_path or options.preset or PRESET
    click.echo(f"requests: {selection.rule}")
    click.echo(
        f"model: {model}, {options.tp_count} ranks ({options.mode}), {options.budget} each, "
        f"at most {options.running_count} requests at a time"
    )
    if options.overlap:
        click.echo("steps overlap: each is launched while the one before it may still run")
    if options.demo:
        click.echo(
            "Each rank is a process that writes its own pattern into the pages it is granted and "
            "checks every byte\nbefore its request is freed. The memory does not hold all "
            "requests, so they wait for one another."
        )
        if options.reserve_batch_count:
            click.echo(
                f"A request's promise lapses after {options.reserve_batch_count} batches, so more "
                "are let in than can all grow to\ntheir full length: pages are moved to make room, "
                "and some requests are retracted and served again."
            )


def _conclude(report: ReplayReport, watch: Watch, *, as_json: bool) -> None:
    for problem in report.outcome.problems:
        if problem.failure.trace:
            click.echo(f"rank {problem.rank_index}:\n{problem.failure.trace}", err=True)
    if as_json:
        print_json(SCHEMA, report.as_json())
        return
    for line in report.lines():
        click.echo(line)
    if watch.fullest is not None:
        click.echo(
            f"\narena of each rank at its fullest, {watch.fullest.request_count} requests live:"
        )
        click.echo(render_map(watch.fullest, MAP_WIDTH_CELLS))
    click.echo()
    for finding in report.findings:
        click.echo(f"FAILED: {finding}")
    if not report.findings:
        click.echo("ok: every byte was as written")
