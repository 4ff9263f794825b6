"""Pictures as files, PNG or SVG: the arena of every stage, and what `kvd bench capacity` found.

They are drawn with matplotlib, because one drawing then becomes either format and the benchmark
needs axes anyway. It is not installed with kvd but with the extra ``plot``, and loaded only here.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from os import W_OK, access
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kvd.cli.picture import Stretch, Use, mebibytes, stretches_of
from kvd.cli.query import StageStatistics
from kvd.errors import FileError, SettingError

if TYPE_CHECKING:
    from kvd.testing.bench_capacity import CapacityRun

Figure: TypeAlias = Any
Axes: TypeAlias = Any
"""matplotlib's own; its hints are too incomplete to be checked strictly."""

DOTS_PER_INCH: Final = 150
WIDTH_INCHES: Final = 12.0
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Told apart by colour-blind readers too."""
_SINK_COLOUR: Final = "#000000"
_GAP_COLOUR: Final = "#eeeeee"
_LOOKS: Final[dict[Use, tuple[float, str]]] = {
    Use.FIXED: (1.0, "xx"),
    Use.LIVE: (1.0, ""),
    Use.PENDING: (0.55, "//"),
    Use.PROMISED: (0.35, ".."),
    Use.HOLE: (0.2, ""),
}
"""Opacity and hatching of each use; the colour says whose it is."""
_DESIGNS: Final = (
    ("kvd", None),
    ("static split, hindsight", "static_hindsight"),
    ("static split, default", "static_default"),
    ("LCM pages", "lcm_pages"),
)
_MiB: Final = 1 << 20
_GiB: Final = 1 << 30


def check_plot_path(path: Path) -> None:
    """Raise SettingError unless a picture can be written under this name here."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise SettingError(f"{path}: a picture's name ends in .png or .svg")
    if not path.parent.is_dir():
        raise SettingError(f"{path}: there is no folder {path.parent} to write a picture to")
    if not access(path if path.exists() else path.parent, W_OK):
        raise SettingError(f"{path}: no permission to write a picture there")
    require_matplotlib()


def require_matplotlib() -> None:
    """Raise SettingError if the library that draws is not installed."""
    if find_spec("matplotlib") is None:
        raise SettingError(
            "pictures are drawn with matplotlib, which is not installed: install kvd with its "
            "extra 'plot'"
        )


def draw_arenas(stages: Sequence[tuple[str, StageStatistics]]) -> Figure:
    """Return the arenas of titled stages, each a bar from byte 0 to its end with a legend."""
    figure = _new_figure(height_inches=0.4 + 3.0 * len(stages))
    panels = figure.subplots(len(stages), 1, squeeze=False)
    for (title, stage), axes in zip(stages, panels[:, 0], strict=True):
        _draw_arena(axes, title, stage)
    return figure


def draw_capacity(runs: Sequence["CapacityRun"]) -> Figure:
    """Return the useful share at the first refusal, a panel per budget and a bar per design."""
    budgets = sorted({run.spec.budget_bytes for run in runs})
    figure = _new_figure(height_inches=0.6 + 3.8 * len(budgets))
    panels = figure.subplots(len(budgets), 1, squeeze=False)
    for budget_bytes, axes in zip(budgets, panels[:, 0], strict=True):
        shown = [run for run in runs if run.spec.budget_bytes == budget_bytes]
        _draw_shares(axes, f"{budget_bytes / _GiB:g} GiB", shown)
    return figure


def save_figure(figure: Figure, path: Path, *, file_format: str | None = None) -> None:
    """Write a picture in the format of its name, or the one given; raises FileError."""
    # Dates and random ids would make two pictures of the same thing differ.
    metadata: dict[str, Any] = {"Date": None} if _format(path, file_format) == "svg" else {}
    try:
        # Tight, as legends stand below their axes and grow with the number of bands.
        figure.savefig(
            path,
            format=_format(path, file_format),
            dpi=DOTS_PER_INCH,
            metadata=metadata,
            bbox_inches="tight",
        )
    except OSError as error:
        raise FileError(f"picture {path} cannot be written: {error.strerror or error}") from error


def _format(path: Path, file_format: str | None) -> str:
    return file_format or path.suffix.lower().removeprefix(".")


def _new_figure(*, height_inches: float) -> Figure:
    require_matplotlib()
    # Not pyplot, which keeps every figure and looks for a screen.
    from matplotlib import figure, rcParams

    rcParams["svg.hashsalt"] = "kvd"
    return figure.Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")


# ---- arenas -----------------------------------------------------------------------------------


def _draw_arena(axes: Axes, title: str, stage: StageStatistics) -> None:
    from matplotlib.patches import Patch

    for stretch in stretches_of(stage):
        start = stretch.start_bytes / _MiB
        width = (stretch.end_bytes - stretch.start_bytes) / _MiB
        axes.broken_barh([(start, width)], (0, 1), linewidth=0, **_look(stretch))
    axes.set_title(title, loc="left")
    axes.set_xlim(0, stage.arena_bytes / _MiB)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_xlabel("MiB from the start of the arena; inside a band shares are drawn, not places")
    marks = [
        Patch(
            label=f"{band.name}: {band.live_units:,} live, {band.hole_units:,} holes, "
            f"{band.promised_units:,} promised, {band.pending_units:,} pending, "
            f"{band.fixed_units:,} fixed; units of {band.unit_bytes:,} bytes",
            **_look(Stretch(0, 0, Use.LIVE, index)),
        )
        for index, band in enumerate(stage.bands)
    ]
    marks += [
        Patch(label=use.value, facecolor="white", edgecolor="black", hatch=hatch)
        for use, (_, hatch) in _LOOKS.items()
        if hatch
    ]
    marks.append(Patch(label="hole", facecolor="black", alpha=_LOOKS[Use.HOLE][0]))
    marks.append(Patch(label=f"sink: {mebibytes(stage.sink_bytes)}", facecolor=_SINK_COLOUR))
    marks.append(Patch(label="free gap", facecolor=_GAP_COLOUR))
    axes.legend(handles=marks, loc="upper left", bbox_to_anchor=(0, -0.3), ncols=2, fontsize=7)


def _look(stretch: Stretch) -> dict[str, Any]:
    if stretch.use is Use.SINK:
        return {"facecolor": _SINK_COLOUR}
    if stretch.use is Use.GAP:
        return {"facecolor": _GAP_COLOUR}
    alpha, hatch = _LOOKS[stretch.use]
    colour = _COLOURS[stretch.band_index % len(_COLOURS)]
    return {"facecolor": colour, "alpha": alpha, "hatch": hatch, "edgecolor": "black"}


# ---- capacity ---------------------------------------------------------------------------------


def _draw_shares(axes: Axes, title: str, runs: Sequence["CapacityRun"]) -> None:
    width = 0.8 / len(_DESIGNS)
    for nth, (label, rival) in enumerate(_DESIGNS):
        shares = [run.useful_percent if rival is None else run.rival_percent(rival) for run in runs]
        places = [place + (nth - (len(_DESIGNS) - 1) / 2) * width for place in range(len(runs))]
        axes.bar(places, shares, width, label=label, color=_COLOURS[nth])
    axes.set_title(f"live bytes at the first refusal, {title}", loc="left")
    axes.set_ylabel("% of the arena without its sink")
    axes.set_ylim(0, 100)
    axes.set_xticks(
        range(len(runs)),
        [f"{run.spec.preset}\n{run.spec.trace.name.partition('.')[0]}" for run in runs],
        rotation=90,
        fontsize=6,
    )
    axes.legend(ncols=len(_DESIGNS), fontsize=8, loc="lower right", bbox_to_anchor=(1, 1))
