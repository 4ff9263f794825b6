"""R4 and R7: what pure packages must not touch, and where settings may be read."""

import ast
from collections.abc import Iterator

from tests.arch.layers import PURE
from tests.arch.source import Finding, Module, SourceTree, dotted

IMPURE_MODULES = frozenset(
    {
        "asyncio",
        "concurrent",
        "contextvars",
        "ctypes",
        "datetime",
        "fcntl",
        "glob",
        "http",
        "importlib",
        "io",
        "locale",
        "logging",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "pickle",
        "platform",
        "queue",
        "random",
        "resource",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "sys",
        "syslog",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "warnings",
        "weakref",
        "cupy",
        "cuda",
        "torch",
        "zmq",
        "uvloop",
        "click",
        "rich",
        "prometheus_client",
    }
)
IMPURE_CALLS = frozenset({"print", "open", "input", "exec", "eval", "hash", "id", "breakpoint"})
"""``hash`` and ``id`` differ from run to run, which is as bad as a clock."""

CONFIG_FILES = ("kvd/config.py", "client/kvd_client/config.py")

_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
_SET_TYPES = {"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"}
_ORDERED_READERS = {"list", "tuple", "iter", "next", "enumerate", "zip", "map", "filter", "dict"}
"""Builtins whose result depends on the order of iteration; sum, min, sorted and len do not."""


def r4_purity(tree: SourceTree) -> Iterator[Finding]:
    """Yield clocks, randomness, I/O and iteration over sets in pure packages."""
    for module in tree.within("kvd.units", *PURE):
        for item in module.imports:
            top = item.target.partition(".")[0]
            if top in IMPURE_MODULES or item.target.startswith("numpy.random"):
                yield module.finding(
                    "R4", item.line, f"a pure package imports {top}", "pass the value in"
                )
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                name = dotted(node.func)
                if name in IMPURE_CALLS:
                    yield module.finding(
                        "R4", node.lineno, f"a pure package calls {name}()", "pass the value in"
                    )
            elif isinstance(node, ast.Attribute) and dotted(node) in {"np.random", "numpy.random"}:
                yield module.finding(
                    "R4", node.lineno, "a pure package draws numbers", "pass the value in"
                )
        yield from _set_iterations(module)


def r7_settings(tree: SourceTree) -> Iterator[Finding]:
    """Yield reads of the environment and of settings files outside the two config modules."""
    remedy = "take the value from kvd.config, or from kvd_client.config in an engine's process"
    for module in tree.shipped:
        if module.path in CONFIG_FILES:
            continue
        for item in module.imports:
            if item.target in {"os.environ", "os.environb", "os.getenv"} or (
                item.target.partition(".")[0] in {"tomllib", "configparser"}
            ):
                yield module.finding("R7", item.line, f"imports {item.target}", remedy)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and dotted(node) in {
                "os.environ",
                "os.environb",
                "os.getenv",
            }:
                yield module.finding("R7", node.lineno, f"uses {dotted(node)}", remedy)
            elif isinstance(node, ast.keyword) and node.arg in {"envvar", "auto_envvar_prefix"}:
                yield module.finding("R7", node.value.lineno, "lets click read a variable", remedy)


def _set_iterations(module: Module) -> Iterator[Finding]:
    names = _set_names(module.tree)
    for node in ast.walk(module.tree):
        read: list[ast.expr] = []
        if isinstance(node, ast.For | ast.AsyncFor):
            read = [node.iter]
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
            read = [generator.iter for generator in node.generators]
            if _is_order_blind(module.tree, node):
                read = []
        elif isinstance(node, ast.Starred):
            read = [node.value]
        elif isinstance(node, ast.Call):
            if dotted(node.func) in _ORDERED_READERS:
                read = list(node.args)
            elif isinstance(node.func, ast.Attribute) and node.func.attr in {"pop", "join"}:
                read = [node.func.value, *node.args]
        for expression in read:
            if _is_set(expression, names):
                yield module.finding(
                    "R4",
                    expression.lineno,
                    f"reads the set '{ast.unparse(expression)}' in hash order",
                    "iterate over sorted(...) or keep a list",
                )


def _is_order_blind(tree: ast.Module, node: ast.expr) -> bool:
    """Return whether a generator only feeds a call that does not see its order."""
    blind = {"sorted", "set", "frozenset", "sum", "min", "max", "len", "any", "all"}
    return isinstance(node, ast.GeneratorExp) and any(
        isinstance(call, ast.Call) and dotted(call.func) in blind and node in call.args
        for call in ast.walk(tree)
    )


def _set_names(tree: ast.Module) -> frozenset[str]:
    """Return names and attributes that the file annotates as sets or assigns sets to."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation and _is_set_type(node.annotation):
            found.append(node.arg)
        elif isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
            found.append(dotted(node.target).removeprefix("self."))
        elif isinstance(node, ast.Assign) and _is_set(node.value, frozenset()):
            found += [dotted(target).removeprefix("self.") for target in node.targets]
    return frozenset(found) - {""}


def _is_set_type(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Subscript):
        return _is_set_type(annotation.value)
    if isinstance(annotation, ast.BinOp):
        return _is_set_type(annotation.left) or _is_set_type(annotation.right)
    return dotted(annotation).rpartition(".")[2] in _SET_TYPES


def _is_set(node: ast.expr, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, ast.BitOr | ast.BitAnd | ast.BitXor | ast.Sub
    ):
        return _is_set(node.left, names) or _is_set(node.right, names)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS:
            return _is_set(node.func.value, names)
        return dotted(node.func) in {"set", "frozenset"}
    name = dotted(node)
    return bool(name) and name.removeprefix("self.") in names
