"""The arena as a picture: a row of cells from byte 0 to the end, and a legend with the bytes.

A daemon counts holes and does not say where they are, so inside a band's span the picture shows
shares: first what is fixed, then what else is live, what is pending, holes that are promised, and
holes that anyone may take. A promise beyond the holes there are has no place yet.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import click

from kvd.cli.query import BandStatistics, StageStatistics
from kvd.units import ceil_div

WIDTH_CELLS_MIN: Final = 20
_COLOURS: Final = ("cyan", "yellow", "green", "magenta", "blue", "red")
_SINK_LETTER: Final = "#"
_GAP_LETTER: Final = "."
_FIXED_LETTER: Final = "!"
_PENDING_LETTER: Final = "~"
_PROMISED_LETTER: Final = "+"
_MiB: Final = 1 << 20


class Use(StrEnum):
    """What a stretch of the arena is used for."""

    SINK = "sink"
    FIXED = "fixed"
    """Live and not to be moved, since a load or a transfer holds it."""
    LIVE = "live"
    PENDING = "pending"
    PROMISED = "promised"
    HOLE = "hole"
    GAP = "gap"


class Stretch(NamedTuple):
    """Bytes ``[start_bytes, end_bytes)`` of one use; ``band_index`` is -1 outside bands."""

    start_bytes: int
    end_bytes: int
    use: Use
    band_index: int = -1


def stretches_of(stage: StageStatistics) -> tuple[Stretch, ...]:
    """Return the whole arena, cut by use, in address order."""
    found = [Stretch(0, stage.sink_bytes, Use.SINK)]
    for index, band in enumerate(stage.bands):
        if band.span_start_index >= band.span_end_index:
            continue
        start = band.span_start_index * band.unit_bytes
        found.append(Stretch(found[-1].end_bytes, start, Use.GAP))
        for use, units in _shares(band):
            end = start + units * band.unit_bytes
            found.append(Stretch(start, end, use, index))
            start = end
    found.append(Stretch(found[-1].end_bytes, stage.arena_bytes, Use.GAP))
    return tuple(stretch for stretch in found if stretch.start_bytes < stretch.end_bytes)


def _shares(band: BandStatistics) -> tuple[tuple[Use, int], ...]:
    """Return the units of each use inside a band's span, in the order of drawing."""
    span_units = band.span_end_index - band.span_start_index
    hole_units = span_units - band.live_units - band.pending_units
    promised_units = min(band.promised_units, hole_units)
    return (
        (Use.FIXED, band.fixed_units),
        (Use.LIVE, band.live_units - band.fixed_units),
        (Use.PENDING, band.pending_units),
        (Use.PROMISED, promised_units),
        (Use.HOLE, hole_units - promised_units),
    )


def render_map(stage: StageStatistics, width: int) -> str:
    """Return the picture of a stage's arena, ``width`` cells wide, with its legend.

    It carries terminal colours, which `click.echo` drops where there is no terminal; the letters
    alone say the same.
    """
    letters = band_letters(stage.bands)
    cells = _cells(stretches_of(stage), stage.arena_bytes, width)
    bar = "".join(_drawn(stretch, letters) for stretch in cells)
    scale = f"0{mebibytes(stage.arena_bytes):>{max(1, width - 1)}}"
    return "\n".join((bar, scale, "", *_legend(stage, letters)))


def band_letters(bands: Sequence[BandStatistics]) -> tuple[str, ...]:
    """Return a capital letter for each band: its own first one where that is free."""
    letters: list[str] = []
    for band in bands:
        wanted = [*band.name.upper(), *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
        letters.append(next(one for one in wanted if one.isalpha() and one not in letters))
    return tuple(letters)


def _cells(stretches: Sequence[Stretch], arena_bytes: int, width: int) -> list[Stretch]:
    """Return the stretch that each cell shows: the one with most bytes in it.

    A stretch too short for that gets the cell it starts in, if the cell's owner has another one:
    the sink, or the first pages of a band, would otherwise never be seen.
    """
    assert width >= WIDTH_CELLS_MIN
    cell_bytes = ceil_div(arena_bytes, width)
    cells: list[int] = []
    for cell in range(width):
        start, end = cell * cell_bytes, (cell + 1) * cell_bytes
        shares = [
            min(end, stretch.end_bytes) - max(start, stretch.start_bytes) for stretch in stretches
        ]
        cells.append(shares.index(max(shares)))
    for nth, stretch in enumerate(stretches):
        cell = stretch.start_bytes // cell_bytes
        if nth not in cells and cells.count(cells[cell]) > 1:
            cells[cell] = nth
    return [stretches[nth] for nth in cells]


def _drawn(stretch: Stretch, letters: Sequence[str]) -> str:
    if stretch.use is Use.SINK:
        return click.style(_SINK_LETTER, dim=True)
    if stretch.use is Use.GAP:
        return click.style(_GAP_LETTER, dim=True)
    letter = letters[stretch.band_index]
    colour = _COLOURS[stretch.band_index % len(_COLOURS)]
    if stretch.use is Use.LIVE:
        return click.style(letter, fg=colour, reverse=True)
    if stretch.use is Use.FIXED:
        return click.style(_FIXED_LETTER, fg=colour, reverse=True)
    marks = {Use.PENDING: _PENDING_LETTER, Use.PROMISED: _PROMISED_LETTER}
    return click.style(marks.get(stretch.use, letter.lower()), fg=colour)


def _legend(stage: StageStatistics, letters: Sequence[str]) -> list[str]:
    lines: list[str] = []
    name_width = max(len("free gaps"), *(len(band.name) for band in stage.bands))
    gap_bytes = sum(
        stretch.end_bytes - stretch.start_bytes
        for stretch in stretches_of(stage)
        if stretch.use is Use.GAP
    )
    for index, (band, letter) in enumerate(zip(stage.bands, letters, strict=True)):
        colour = _COLOURS[index % len(_COLOURS)]
        unit = "slots" if band.kind == "state" else "pages"
        span_units = band.span_end_index - band.span_start_index
        moved = f"; {band.moved_units_total:,} moved so far" if band.moved_units_total else ""
        counts = [
            f"{letter} {band.live_units} live",
            f"{letter.lower()} {span_units - band.live_units - band.pending_units} holes",
        ]
        counts += [
            f"{mark} {units} {use.value}"
            for mark, units, use in (
                (_FIXED_LETTER, band.fixed_units, Use.FIXED),
                (_PROMISED_LETTER, band.promised_units, Use.PROMISED),
                (_PENDING_LETTER, band.pending_units, Use.PENDING),
            )
            if units
        ]
        lines.append(
            f"{click.style(letter, fg=colour, reverse=True)} {band.name:<{name_width}} "
            f"{mebibytes(span_units * band.unit_bytes):>12}  "
            f"{', '.join(counts)} {unit} of {band.unit_bytes:,} bytes{moved}"
        )
    lines.append(f"{_SINK_LETTER} {'sink':<{name_width}} {mebibytes(stage.sink_bytes):>12}")
    lines.append(f"{_GAP_LETTER} {'free gaps':<{name_width}} {mebibytes(gap_bytes):>12}")
    layouts = [f"{name} {count:,}" for name, count in stage.layouts.items() if count]
    if layouts:
        lines.append(f"  layouts so far: {', '.join(layouts)}")
    return lines


def mebibytes(count: int) -> str:
    """Return bytes as text in MiB."""
    return f"{count / _MiB:,.1f} MiB"
