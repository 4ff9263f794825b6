"""The sources as the rules see them: a mapping of paths to texts, parsed once.

A rule takes a `SourceTree` and returns findings. Because the tree is a plain mapping, the tests of
the rules feed them snippets under any path they like.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = {"kvd/": "", "client/kvd_client/": "client/", "proto/kvd_proto/": "proto/"}
"""Where shipped modules lie, and the part of the path that is no part of the import name."""


class Finding(NamedTuple):
    """One place where a rule does not hold, and what would make it hold."""

    rule: str
    path: str
    line: int
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.rule} {self.path}:{self.line}: {self.message}; {self.remedy}"


class Import(NamedTuple):
    """One imported module or name."""

    target: str
    """Full dotted name: the module, or module.name for ``from module import name``."""
    line: int
    lazy: bool
    """True inside a function or under TYPE_CHECKING: importing the module does not run it."""
    relative: bool


@dataclass(frozen=True)
class Module:
    """One Python file."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Return the syntax tree."""
        return ast.parse(self.text, filename=self.path)

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines without their ends."""
        return self.text.splitlines()

    @property
    def name(self) -> str:
        """Return the import name; for files outside the source roots the path with dots."""
        path = self.path
        for root, prefix in SOURCE_ROOTS.items():
            if path.startswith(root):
                path = path.removeprefix(prefix)
        return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def shipped(self) -> bool:
        """Return whether the file is part of the wheel."""
        return self.path.startswith(tuple(SOURCE_ROOTS))

    @cached_property
    def imports(self) -> list[Import]:
        """Return everything imported anywhere in the file."""
        found: list[Import] = []
        _collect_imports(self.tree, lazy=False, found=found)
        return found

    def finding(self, rule: str, line: int, message: str, remedy: str) -> Finding:
        """Return a finding in this file."""
        return Finding(rule, self.path, line, message, remedy)


class SourceTree:
    """All files that rules look at, by path relative to the repository."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(sorted(files.items()))
        self.modules = [
            Module(path, text) for path, text in self.files.items() if path.endswith(".py")
        ]
        self.by_name = {module.name: module for module in self.modules if module.shipped}

    @property
    def shipped(self) -> list[Module]:
        """Return the modules of the wheel."""
        return [module for module in self.modules if module.shipped]

    def within(self, *packages: str) -> Iterator[Module]:
        """Yield the shipped modules of these packages."""
        for module in self.shipped:
            if is_within(module.name, *packages):
                yield module

    def imported_modules(self, module: Module) -> Iterator[tuple[str, Import]]:
        """Yield our own modules that a module imports, by their full names."""
        for item in module.imports:
            if item.target in self.by_name:
                yield item.target, item
            elif (parent := item.target.rpartition(".")[0]) in self.by_name:
                yield parent, item


def is_within(name: str, *packages: str) -> bool:
    """Return whether a dotted name is one of the packages or lies inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def read_repository() -> SourceTree:
    """Return the files of this checkout."""
    paths = [
        path
        for folder in ("kvd", "client", "proto", "tests", "deploy")
        for path in sorted((REPOSITORY / folder).rglob("*"))
        if path.suffix in {".py", ".json"} and "__pycache__" not in path.parts
    ]
    return SourceTree(
        {path.relative_to(REPOSITORY).as_posix(): path.read_text("utf-8") for path in paths}
    )


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` for such an expression, else an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _collect_imports(node: ast.AST, *, lazy: bool, found: list[Import]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found += [Import(alias.name, child.lineno, lazy, False) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            found += [
                Import(f"{base}.{alias.name}", child.lineno, lazy, child.level > 0)
                for alias in child.names
            ]
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            _collect_imports(child, lazy=True, found=found)
        elif isinstance(child, ast.If) and dotted(child.test).endswith("TYPE_CHECKING"):
            for inner in child.body:
                _collect_imports(ast.Module([inner], []), lazy=True, found=found)
            for inner in child.orelse:
                _collect_imports(ast.Module([inner], []), lazy=lazy, found=found)
        else:
            _collect_imports(child, lazy=lazy, found=found)
