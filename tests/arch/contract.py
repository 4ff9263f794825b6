"""R10 and R11: invariants, unit tests, message types and sleeping tests."""

import ast
import json
import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from tests.arch.layers import PURE
from tests.arch.source import Finding, Module, SourceTree, dotted

GOLDEN_PATH = "tests/proto/golden.json"
VERSION_PATH = "proto/kvd_proto/version.py"

_INVARIANT_LINE = re.compile(r"^\s+([a-z][a-z_]*\.[a-z_]+):")


class Name(NamedTuple):
    """A name and the place where it stands."""

    name: str
    module: Module
    line: int


def r10_invariants(tree: SourceTree) -> Iterator[Finding]:
    """Yield invariants that are not at once documented, registered and tested.

    The registry belongs to the daemon; an invariant of the client needs its test only.
    """
    documented = [item for module in tree.shipped for item in _documented(module)]
    registered = [item for module in tree.shipped for item in _registered(module)]
    documented_names = {item.name for item in documented}
    registered_names = {item.name for item in registered}
    tests = "\n".join(
        text
        for path, text in tree.files.items()
        if path.startswith("tests/") and not path.startswith("tests/arch/")
    )
    for item in documented:
        if item.module.name.startswith("kvd_client"):
            if item.name not in tests:
                yield item.module.finding(
                    "R10", item.line, f"{item.name} occurs in no test", "break it and name it"
                )
        elif item.name not in registered_names:
            yield item.module.finding(
                "R10", item.line, f"{item.name} is no registered check", "add it to CHECKS"
            )
    for item in registered:
        if item.name not in documented_names:
            yield item.module.finding(
                "R10",
                item.line,
                f"{item.name} is documented nowhere",
                "list it under 'Invariants:' in the docstring of the state it protects",
            )
        if item.name not in tests:
            yield item.module.finding(
                "R10",
                item.line,
                f"{item.name} occurs in no test",
                "break the state by hand and expect this name",
            )
    yield from _estimates(tree)


def r11_unit_tests(tree: SourceTree) -> Iterator[Finding]:
    """Yield pure modules with code but without a unit test file."""
    for module in tree.within("kvd.units", *PURE):
        if module.path.endswith("/__init__.py") or not _has_functions(module):
            continue
        stem = "test_" + module.name.removeprefix("kvd.").replace(".", "_")
        expected = re.compile(rf"tests/unit/{stem}(_\w+)?\.py")
        if not any(expected.fullmatch(path) for path in tree.files):
            yield module.finding(
                "R11", 1, f"{module.name} has no unit test", f"write tests/unit/{stem}.py"
            )


def r11_messages(tree: SourceTree) -> Iterator[Finding]:
    """Yield message types with a tag in use already, or without golden bytes."""
    tags = {
        item.name: (item, tag)
        for module in tree.within("kvd_proto")
        for item, tag in _tagged_structs(module)
    }
    for module in tree.within("kvd_proto"):
        for union in _unions(module):
            seen: dict[str, str] = {}
            for member in union.members:
                if member not in tags:
                    continue
                tag = tags[member][1]
                if tag in seen:
                    yield module.finding(
                        "R11",
                        union.line,
                        f"{member} and {seen[tag]} share the tag '{tag}' in {union.name}",
                        "give one another tag",
                    )
                seen[tag] = member
    golden = tree.files.get(GOLDEN_PATH)
    if golden is None:
        yield Finding("R11", GOLDEN_PATH, 1, "no golden bytes", "write the file with its test")
        return
    entries = _entries(json.loads(golden))
    for item, tag in tags.values():
        if not any(re.split(r"[./:]", key)[-1] == tag for key, _ in entries):
            yield item.module.finding(
                "R11", item.line, f"'{tag}' has no golden bytes", f"add it to {GOLDEN_PATH}"
            )
    versions = [value for key, value in entries if key.lower() == "protocol_version"]
    expected = _constant(tree, VERSION_PATH, "PROTOCOL_VERSION")
    if versions != [expected]:
        yield Finding(
            "R11",
            GOLDEN_PATH,
            1,
            f"golden bytes of protocol {versions}, the code speaks {expected}",
            "raise PROTOCOL_VERSION and write new bytes in one commit",
        )


def r11_sleeps(tree: SourceTree) -> Iterator[Finding]:
    """Yield tests that sleep; giving up the turn once, ``asyncio.sleep(0)``, is no sleep."""
    for module in tree.modules:
        if module.shipped:
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            if dotted(node.func).rpartition(".")[2] == "sleep" and not (
                node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            ):
                yield module.finding(
                    "R11", node.lineno, "a test sleeps", "wait for the event, with a deadline"
                )


def _documented(module: Module) -> Iterator[Name]:
    """Yield the names under ``Invariants:`` in every docstring of a module."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text = ast.get_docstring(node, clean=False)
        if text is None or "Invariants:" not in text:
            continue
        first = node.body[0].lineno
        head = text.partition("Invariants:")[0].count("\n")
        for offset, line in enumerate(text.partition("Invariants:")[2].splitlines()):
            if offset and not line.strip():
                break
            match = _INVARIANT_LINE.match(line)
            if match:
                yield Name(match.group(1), module, first + head + offset)


def _registered(module: Module) -> Iterator[Name]:
    """Yield the names of a ``CHECKS`` literal in a module called checks."""
    if module.name.rpartition(".")[2] != "checks":
        return
    for node in module.tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if not any(dotted(target) == "CHECKS" for target in targets):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and dotted(call.func) == "Check":
                names = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
                for value in names or call.args[:1]:
                    if isinstance(value, ast.Constant):
                        yield Name(str(value.value), module, value.lineno)


def _estimates(tree: SourceTree) -> Iterator[Finding]:
    """Yield decisions that read numbers meant for people."""
    for module in tree.within(*PURE):
        last = module.name.rpartition(".")[2]
        if last.startswith(("estimate", "statistics")):
            continue
        for item in module.imports:
            if any(part.startswith("estimate") for part in item.target.split(".")):
                yield module.finding(
                    "R10",
                    item.line,
                    f"{module.name} imports the estimate {item.target}",
                    "decide on exact counts; estimates are for statistics",
                )


def _has_functions(module: Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(module.tree))


def _tagged_structs(module: Module) -> Iterator[tuple[Name, str]]:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef):
            for keyword in node.keywords:
                tag = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg == "tag" and isinstance(tag, str):
                    yield Name(node.name, module, node.lineno), tag


class Union(NamedTuple):
    """A type alias of several message types."""

    name: str
    members: list[str]
    line: int


def _unions(module: Module) -> Iterator[Union]:
    for node in module.tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
            target = node.target if isinstance(node, ast.AnnAssign) else None
            members = [dotted(leaf) for leaf in ast.walk(value) if isinstance(leaf, ast.Name)]
            yield Union(dotted(target) if target else "a union", members, node.lineno)


def _entries(value: object) -> list[tuple[str, object]]:
    """Return all keys of a JSON document at any depth, with their values."""
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        return [*table.items(), *(item for inner in table.values() for item in _entries(inner))]
    if isinstance(value, list):
        return [item for inner in cast("list[object]", value) for item in _entries(inner)]
    return []


def _constant(tree: SourceTree, path: str, name: str) -> object:
    for module in tree.modules:
        if module.path == path:
            for node in module.tree.body:
                if isinstance(node, ast.Assign) and dotted(node.targets[0]) == name:
                    return getattr(node.value, "value", None)
    return None
