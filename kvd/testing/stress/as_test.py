"""A program as a test that is ready to be pasted: it passes once what it found is mended."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, structs

from kvd.testing.stress.program import Program

COLUMNS_MAX: Final = 100


def as_test(program: Program, check: str) -> str:
    """Return a test module for pytest that plays a program, on which a check did not hold.

    It is formatted like the rest of the repository.
    """
    kinds = sorted({type(step).__name__ for step in program.steps} | {"Program"})
    imports = f"from kvd.testing.stress.program import {', '.join(kinds)}"
    if len(imports) > COLUMNS_MAX:
        imports = "\n".join(_call("from kvd.testing.stress.program import ", kinds))
    name = re.sub(r"\W+", "_", check)
    lines = [
        f'"""A program on which {check} did not hold."""',
        "",
        imports,
        "from kvd.testing.stress.run import run",
        "",
        "PROGRAM = " + "\n".join(_program(program)),
        "",
        "",
        f"def test_{name}_holds() -> None:",
        "    assert run(PROGRAM).failure is None",
        "",
    ]
    return "\n".join(lines)


def _program(program: Program) -> list[str]:
    steps = [_struct(step, indent=8) for step in program.steps]
    arguments = [it for it in _arguments(program) if not it.startswith("steps=")]
    if len(steps) == 1 and "\n" not in steps[0] and len(steps[0]) < COLUMNS_MAX - 16:
        arguments.append(f"steps=({steps[0]},)")
    elif steps:
        arguments.append(
            "\n        ".join(["steps=(", *[f"{step}," for step in steps]]) + "\n    )"
        )
    return _call("Program", arguments)


def _struct(struct: Struct, *, indent: int) -> str:
    """Return a struct as it is written, its defaults left out; ``indent`` columns stand before."""
    arguments = _arguments(struct)
    line = f"{type(struct).__name__}({', '.join(arguments)})"
    if indent + len(line) < COLUMNS_MAX:
        return line
    return ("\n" + " " * indent).join(_call(type(struct).__name__, arguments))


def _arguments(struct: Struct) -> list[str]:
    given: list[str] = []
    for field in structs.fields(struct):
        value: object = getattr(struct, field.name)
        if value != field.default:
            given.append(f"{field.name}={_literal(value)}")
    return given


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _call(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the lines of a call with an argument on each."""
    return [f"{name}(", *[f"    {argument}," for argument in arguments], ")"]
