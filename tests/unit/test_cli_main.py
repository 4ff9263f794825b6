"""The command line as a whole: the table of subcommands, lazy loading, errors at the rim."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from kvd import __version__
from kvd.cli.main import SUBCOMMANDS, LazyGroup, cli
from kvd.errors import PlanError

SLOW_IMPORTS = ("zmq", "numpy", "rich", "msgspec", "uvloop", "torch", "tomllib")


def test_help_lists_every_subcommand_with_its_line() -> None:
    ran = CliRunner().invoke(cli, ["--help"])
    assert ran.exit_code == 0
    assert [name for name, entry in SUBCOMMANDS.items() if entry.summary not in ran.output] == []


def test_help_loads_no_subcommand_and_no_slow_library() -> None:
    program = (
        "import sys\n"
        "from kvd.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print('LOADED', *[name for name in sys.modules\n"
        f"    if name in {SLOW_IMPORTS!r} or name.startswith('kvd.cli.')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "LOADED kvd.cli.main"


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"kvd {__version__}\n"


def test_an_unknown_subcommand_is_a_usage_error() -> None:
    ran = CliRunner().invoke(cli, ["srve"])
    assert ran.exit_code == 2
    assert "srve" in ran.output


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_loads_and_has_help(name: str) -> None:
    ran = CliRunner().invoke(cli, [name, "--help"])
    assert ran.exit_code == 0, ran.output
    assert f"Usage: cli {name}" in ran.output


def test_an_error_of_kvd_becomes_one_line_and_exit_code_2() -> None:
    @click.command()
    def refuse() -> None:
        raise PlanError("layer 3 has no page")

    class OneCommand(LazyGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
            return refuse

    ran = CliRunner().invoke(OneCommand(name="kvd"), ["refuse"])
    assert ran.exit_code == 2
    assert ran.stderr == "error: layer 3 has no page\n"
    assert ran.stdout == ""
