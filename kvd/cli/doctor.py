"""``kvd doctor``: whether this host, and this pod, can run kvd, and what to change."""

import sys
from pathlib import Path
from typing import Final

import click

from kvd.alloc.checks import CHECKS, Check, CheckLevel, Side
from kvd.cli.checkup import Verdict, examine
from kvd.cli.flags import load_from_flags, setting_options
from kvd.cli.output import print_json, print_table

EXIT_FAILED: Final = 1


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--invariants", "lists_invariants", is_flag=True, help="List what kvd checks of itself instead."
)
@setting_options("serve", "sizing", only=("runtime_dir", "socket_path", "budget_bytes"))
def doctor(
    config_file: Path | None, as_json: bool, lists_invariants: bool, **flags: str | None
) -> None:
    """Check whether this host can run kvd.

    Changes nothing. Exits with 1 when something that kvd needs is missing.
    """
    if lists_invariants:
        _list_invariants(as_json=as_json)
        return
    answers = list(examine(load_from_flags(config_file, flags)))
    failed = [answer for answer in answers if answer.verdict is Verdict.FAIL]
    if as_json:
        checks = [
            {
                "question": answer.question,
                "verdict": answer.verdict.value,
                "found": answer.found,
                "change": answer.change,
            }
            for answer in answers
        ]
        print_json("kvd.doctor/1", {"ok": not failed, "checks": checks})
    else:
        print_table(
            "kvd doctor",
            ("question", "verdict", "found", "what to change"),
            [(item.question, item.verdict.value, item.found, item.change) for item in answers],
        )
        click.echo(_summary(len(failed)))
    sys.exit(EXIT_FAILED if failed else 0)


def _summary(failed_count: int) -> str:
    if failed_count:
        return f"kvd does not run here: {failed_count} of the checks failed"
    return "kvd runs here"


def _list_invariants(*, as_json: bool) -> None:
    """Show the registry of invariants, in its order."""
    if as_json:
        rows = [
            {
                "name": check.name,
                "side": check.side.value,
                "level": check.level.word,
                "fatal": check.fatal,
                "protects": check.protects,
            }
            for check in CHECKS
        ]
        print_json("kvd.invariants/1", {"invariants": rows})
        return
    print_table(
        "kvd doctor --invariants",
        ("name", "side", "runs at", "when broken", "protects"),
        [
            (check.name, check.side.value, _runs_at(check), _when_broken(check), check.protects)
            for check in CHECKS
        ],
    )


def _runs_at(check: Check) -> str:
    words = {CheckLevel.OFF: "always", CheckLevel.WARN: "warn, strict", CheckLevel.STRICT: "strict"}
    return words[check.level]


def _when_broken(check: Check) -> str:
    if check.fatal or check.side is Side.CLIENT:
        return "raises"
    return "counts at warn, raises at strict"
