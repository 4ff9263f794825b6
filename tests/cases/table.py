"""Which test or scenario holds each public case: what is collected, and the table made of it.

A case is something that went wrong in a system of this kind and was told in public. Tests name the
cases that they hold with ``@pytest.mark.case("1", "2")``, scenarios in their field ``cases``.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

TESTS: Final = Path(__file__).parents[1]
LISTING: Final = Path(__file__).with_name("cases.json")
TABLE: Final = TESTS / "cases.md"
SCENARIOS: Final = TESTS / "traces" / "scenarios"
MARK: Final = "pytest.mark.case"

HEAD: Final = """\
# Public cases and what holds them

Each case is something that went wrong elsewhere, in a system of this kind; the source is where it
was told. `python -m tests.cases` writes this table from `cases/cases.json`, from the tests that are
marked `@pytest.mark.case`, and from the scenarios of `traces/scenarios`. A case without a test has
the reason why it cannot have one, or not yet.

| case | source | what went wrong | held by |
| --- | --- | --- | --- |
"""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One case."""

    case: str
    """Its number; numbers that are missing were merged into others."""
    source: str
    title: str
    note: str = ""
    """Why nothing holds it, or what of it nothing holds yet."""


class Holder(NamedTuple):
    """A test or a scenario that holds cases."""

    name: str
    cases: tuple[str, ...]


def read_cases() -> list[Case]:
    """Return all cases, in order."""
    return msgspec.json.decode(LISTING.read_bytes(), type=list[Case])


def read_holders() -> list[Holder]:
    """Return all marked tests and scenarios with cases, in order of their names."""
    return [*_marked_tests(), *_scenarios()]


def table(cases: Sequence[Case], holders: Sequence[Holder]) -> str:
    """Return the document."""
    held: defaultdict[str, list[str]] = defaultdict(list)
    for holder in holders:
        for case in holder.cases:
            held[case].append(holder.name)
    return HEAD + "".join(_row(case, held) for case in cases)


def _row(case: Case, held: Mapping[str, Sequence[str]]) -> str:
    cells = [f"`{name}`" for name in held.get(case.case, ())] + [case.note] * bool(case.note)
    return f"| {case.case} | {case.source} | {case.title} | {'<br>'.join(cells)} |\n"


def _marked_tests() -> Iterator[Holder]:
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if MARK not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                cases = tuple(_numbers(node.decorator_list))
                if cases:
                    name = f"{path.relative_to(TESTS).as_posix()}::{node.name}"
                    yield Holder(name, cases)


def _numbers(decorators: Sequence[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == MARK:
            for argument in decorator.args:
                assert isinstance(argument, ast.Constant), ast.unparse(decorator)
                yield str(argument.value)


def _scenarios() -> Iterator[Holder]:
    """Yield scenarios; a case there is its number, and behind it the source."""
    for path in sorted(SCENARIOS.glob("*.json")):
        named = json.loads(path.read_text(encoding="utf-8")).get("cases", ())
        numbers = tuple(dict.fromkeys(str(case).split()[0] for case in named))
        if numbers:
            yield Holder(f"traces/scenarios/{path.name}", numbers)
