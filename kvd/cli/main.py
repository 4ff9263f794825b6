"""The ``kvd`` command: a table of subcommands, each loaded only when it runs.

``kvd stats --json`` has to return within 0.3 s as a whole process, so this module imports nothing
but click, and the help of ``kvd`` itself comes from the table below.
"""

import importlib
import signal
from types import FrameType
from typing import Final, NamedTuple

import click

from kvd import __version__
from kvd_proto.errors import KvdError

EXIT_ERROR: Final = 2
"""What a command returns when kvd refuses it; 1 is left to what a command checks and finds."""
EXIT_SIGNALLED: Final = 128
"""What a command returns that a signal ended, with the signal's number added, as shells do."""


class Subcommand(NamedTuple):
    """Where a subcommand lives and what it does, in one line."""

    module: str
    attribute: str
    summary: str


SUBCOMMANDS: Final[dict[str, Subcommand]] = {
    "serve": Subcommand("kvd.cli.serve", "serve", "Run the daemon."),
    "hold": Subcommand("kvd.cli.hold", "hold", "Keep the daemon's memory in a process of its own."),
    "plan": Subcommand("kvd.cli.plan", "plan", "Say what fits: bands, bytes, floor, targets."),
    "stats": Subcommand("kvd.cli.stats", "stats", "Show what a running daemon's bands hold."),
    "map": Subcommand("kvd.cli.map", "map_", "Draw the arena: bands, holes, pending pages."),
    "what-if": Subcommand("kvd.cli.what_if", "what_if", "Say whether a demand would fit, and how."),
    "replay": Subcommand("kvd.cli.replay", "replay", "Drive a request trace and check all bytes."),
    "trace": Subcommand("kvd.cli.trace", "trace", "Record, replay and compare what was decided."),
    "release-quarantine": Subcommand(
        "kvd.cli.release_quarantine",
        "release_quarantine",
        "Give a dead rank's memory back, on proof.",
    ),
    "config": Subcommand("kvd.cli.config", "config", "Print the settings that apply, and why."),
    "doctor": Subcommand("kvd.cli.doctor", "doctor", "Check whether this host can run kvd."),
    "stress": Subcommand("kvd.cli.stress", "stress", "Play random programs and check all pages."),
    "bench": Subcommand("kvd.cli.bench", "bench", "Measure kvd beside a plain echo."),
}


class LazyGroup(click.Group):
    """A click group that imports a subcommand's module when it is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands in the order of the table."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the subcommand, loading its module, or None if there is none of that name."""
        entry = SUBCOMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command), f"{entry.module}.{entry.attribute}"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table into the help, without loading a single module."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in SUBCOMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand; an error of kvd, or Ctrl-C, becomes one line on stderr."""
        try:
            return super().invoke(ctx)
        except KvdError as error:
            click.echo(f"error: {error.message}", err=True)
            ctx.exit(EXIT_ERROR)
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            ctx.exit(EXIT_SIGNALLED + signal.SIGINT)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kvd", message="%(prog)s %(version)s")
def cli() -> None:
    """Own the GPU memory of a hybrid language model's requests and share it out."""


def main() -> None:
    """Run the command line of this process and exit with its code.

    SIGTERM ends a command as Ctrl-C does: whatever it started is ended in order, and folders of its
    own are removed.
    """
    signal.signal(signal.SIGTERM, _leave)
    cli.main(prog_name="kvd")


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_SIGNALLED + number)
