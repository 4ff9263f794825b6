"""Traces of what the stress harness draws from a seed: its programs as events for any allocator.

A program is played as always, ranks, modelled devices and all; what its stages decide is recorded
beside it. So a trace has every operation that the harness knows, facts of several ranks in any
order, and one file for each incarnation, because ranks die.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvd.engine.legacy import Legacy
from kvd.errors import SettingError, StressFailure
from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.program import AnyStep, Program
from kvd.testing.stress.run import StressRun
from kvd.testing.stress.shapes import SHAPES
from kvd.trace.writer import TracedIncarnation

SNAP_ENTRIES: Final = 64
"""Between two snaps: stages of the harness are small."""


class TracedRun(StressRun):
    """A run whose incarnations are recorded, each into a file of a folder."""

    def __init__(self, program: Program, folder: Path) -> None:
        """Attach the ranks of a program; raises OSError if nothing can be written."""
        self.paths: list[Path] = []
        self._folder = folder
        self._trace: TracedIncarnation | None = None
        super().__init__(program, oracle_permille=0)

    def _attach(self, legacy: Legacy | None, redo: Sequence[bytes]) -> None:
        self.end_trace()
        super()._attach(legacy, redo)
        incarnation = self.stage.incarnation
        program = self.program
        name = f"{program.shape}-{program.seed_index}"
        path = self._folder / f"{name}-{incarnation.number}.trace.jsonl"
        self.paths.append(path)
        self._sink = path.open("xb")
        self._trace = TracedIncarnation(
            self._sink, incarnation, group=name, snap_entries=SNAP_ENTRIES
        )

    def play(self, step: AnyStep) -> bool:
        """Play one step and record what it decided, whether it was found wrong or not."""
        assert self._trace is not None
        try:
            return super().play(step)
        finally:
            self._trace.look()

    def end_trace(self, cause: str = "") -> None:
        """Close the newest trace; ``cause`` says why, where the incarnation goes on."""
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.end(cause)
            self._sink.close()


def record_seed(shape: str, seed: int, *, step_count: int, folder: Path) -> list[Path]:
    """Play the first steps of a seed and return the traces, one for each incarnation.

    A run that a check of the harness ends is recorded up to there. Raises SettingError for a shape
    that there is not, OSError if a file cannot be written.
    """
    if shape not in SHAPES:
        raise SettingError(f"shape {shape!r} is unknown; there are {', '.join(SHAPES)}")
    run = TracedRun(program_of(shape, seed), folder)
    cause = "the steps are over"
    try:
        for _, step in zip(range(step_count), steps_of(shape, seed), strict=False):
            run.play(step)
    except StressFailure as failure:
        cause = str(failure)
    finally:
        run.end_trace(cause)
        run.close()
    return run.paths
