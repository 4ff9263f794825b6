"""What a planted fault is: one rule of the product left out or got wrong, as a change to its code.

Most changes are edits of one line. The function gets the code of its source with that line changed,
in place, so that everybody who has the function runs it, whatever they imported it from or bound it
to. Tables of data have entries replaced. Everything is put back at the end, and what the text of an
edit no longer fits is an error, so that a fault cannot silently be none.
"""

import ast
import inspect
import textwrap
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from kvd.alloc.clearance import (
    CLEARANCE,
    READ_CLEARANCE,
    Cell,
    Consumer,
    Hazard,
    Reader,
    Rule,
    Writer,
)
from kvd.errors import WorkloadError

_LEFT_OUT: Final = Rule(Cell.NOTHING, "left out")
_COMPILER_FLAGS: Final = 0x1FF0000
"""Bits of a code object that say which future statements its module has."""


TURN: Final = "__import__('kvd.testing.mutants.fault', fromlist=['turn']).turn()"
"""What stands in edits for something that depends on the process and not on its state."""

_turns: Final = [0]


def turn() -> int:
    """Return how often this was asked since faults were planted: no state of the product has it."""
    _turns[0] += 1
    return _turns[0]


class Edit(NamedTuple):
    """One place of a function, and what stands there instead."""

    function: str
    """Module and name, such as ``kvd.alloc.band:Band.grow``; of a property, its getter."""
    old: str
    """A part of the function's source that occurs once."""
    new: str


class Uncleared(NamedTuple):
    """A cell of the writers' clearance table that asks for nothing."""

    consumer: Consumer
    hazard: Hazard


class Unread(NamedTuple):
    """A cell of the readers' clearance table that asks for nothing."""

    reader: Reader
    writer: Writer


Change = Edit | Uncleared | Unread


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be planted."""

    name: str
    rule: str
    """What holds as long as the fault is not planted."""
    changes: tuple[Change, ...]
    beside: str = ""
    """Another rule that keeps the same accesses apart, or the same answer right, and is left out as
    well; empty where the rule stands alone."""


def edited(name: str, rule: str, *edits: tuple[str, str, str]) -> Fault:
    """Return a fault of edits alone, each given as the parts of an `Edit`."""
    return Fault(name, rule, tuple([Edit(*edit) for edit in edits]))


class Equivalent(NamedTuple):
    """A change that makes no difference, and why."""

    name: str
    change: str
    proof: str


@contextmanager
def planted(*faults: Fault) -> Generator[None]:
    """Plant faults for a while; raises WorkloadError for one that does not fit the product.

    Of one process only: a child that is forked meanwhile has them too, one that is spawned has not.
    """
    _turns[0] = 0
    with ExitStack() as stack:
        edits: dict[str, list[Edit]] = {}
        for fault in faults:
            for change in fault.changes:
                if isinstance(change, Edit):
                    edits.setdefault(change.function, []).append(change)
                elif isinstance(change, Uncleared):
                    stack.enter_context(_replaced(CLEARANCE, (change.consumer, change.hazard)))
                else:
                    stack.enter_context(_replaced(READ_CLEARANCE, (change.reader, change.writer)))
        for name, several in edits.items():
            stack.enter_context(_edited(name, several))
        yield


@contextmanager
def _replaced(table: dict[Any, Rule], place: object) -> Generator[None]:
    kept, table[place] = table[place], _LEFT_OUT
    try:
        yield
    finally:
        table[place] = kept


@contextmanager
def _edited(name: str, edits: Sequence[Edit]) -> Generator[None]:
    function = function_of(name)
    kept = function.__code__
    function.__code__ = _edited_code(name, function, edits)
    try:
        yield
    finally:
        function.__code__ = kept


def function_of(name: str) -> FunctionType:
    """Return the function that an edit names; raises WorkloadError if there is none."""
    module_name, _, path = name.partition(":")
    found: object = import_module(module_name)
    for part in path.split("."):
        try:
            found = inspect.getattr_static(found, part)
        except AttributeError:
            raise WorkloadError(f"there is no {name}, of which {part} is a part") from None
        if isinstance(found, property):
            found = found.fget
        found = inspect.unwrap(found) if callable(found) else found
    if not isinstance(found, FunctionType):
        raise WorkloadError(f"{name} is no function")
    return found


def _edited_code(name: str, function: FunctionType, edits: Sequence[Edit]) -> CodeType:
    code = function.__code__
    try:
        lines, first_line = inspect.getsourcelines(code)
    except OSError as error:
        raise WorkloadError(f"the source of {name} is not here: {error}") from None
    source = textwrap.dedent("".join(lines))
    for edit in edits:
        count = source.count(edit.old)
        if count != 1:
            raise WorkloadError(f"{edit.old!r} occurs {count} times in {name}, not once")
        if edit.new == edit.old:
            raise WorkloadError(f"an edit of {name} leaves {edit.old!r} as it is")
        source = source.replace(edit.old, edit.new)
    tree = ast.increment_lineno(ast.parse(source), first_line - 1)
    flags = code.co_flags & _COMPILER_FLAGS
    module = compile(tree, code.co_filename, "exec", flags=flags, dont_inherit=True)
    compiled = next(
        one for one in module.co_consts if isinstance(one, CodeType) and one.co_name == code.co_name
    )
    if compiled.co_freevars != code.co_freevars:
        raise WorkloadError(f"{name} belongs to a function or calls super(), and cannot be edited")
    return compiled.replace(co_qualname=code.co_qualname)


def by_name(faults: Sequence[Fault]) -> Mapping[str, Fault]:
    """Return faults by name; raises WorkloadError if two have one name."""
    named = {fault.name: fault for fault in faults}
    if len(named) != len(faults):
        names = [fault.name for fault in faults]
        twice = next(name for name in names if names.count(name) > 1)
        raise WorkloadError(f"two faults are named {twice}")
    return named
