"""R5, R8 and R9: sizes, errors and data types."""

import ast
import re
from collections.abc import Iterator

from tests.arch.source import Finding, Module, SourceTree, dotted, is_within

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100

ERROR_FILES = ("kvd/errors.py", "client/kvd_client/errors.py", "proto/kvd_proto/errors.py")
ERROR_ROOTS = ("KvdError", "KvdClientError")
BANNED_RAISES = ("Exception", "BaseException", "RuntimeError", "ValueError", "KeyError")
RIM_PACKAGES = ("kvd.serve", "kvd.hold", "kvd.cli", "kvd.testing", "kvd_client")
RIM_MARK = "# rim: "

STATE_OWNERS = ("Band", "ChainAllocator", "KvEngine", "Session")
"""The few classes that change: even as data classes, because their methods alone change them."""

UNIT_NAME = re.compile(
    r"(^|_)(bytes|pages|tokens|units|slots|batches|moves|count|index|permille|rank|ms)"
    r"(_(min|max|total))?$"
)
IDENTIFYING_NAME = re.compile(
    r"(^|_)(id|version|epoch|token|ticket|incarnation|position|step|program|stage|band|request"
    r"|load|backup|copy|transfer|digest|descriptor|pid|uid|gid|tp|pp)(_(min|max))?$"
)
"""Nouns that name something or someone; nobody adds them up or converts them."""

_FIX_ME = "FIX" + "ME"
_TO_DO = re.compile(r"#\s*TO" + r"DO(?!\(#?\d+\): \S)")


def r5_sizes(tree: SourceTree) -> Iterator[Finding]:
    """Yield what is too long, undocumented or left unfinished."""
    for module in tree.modules:
        if len(module.lines) > MODULE_LINES_MAX:
            yield module.finding(
                "R5",
                MODULE_LINES_MAX + 1,
                f"{len(module.lines)} lines in a module",
                f"split it; the limit is {MODULE_LINES_MAX}",
            )
        if ast.get_docstring(module.tree) is None:
            yield module.finding("R5", 1, "no module docstring", "say in one line what it is for")
        for number, line in enumerate(module.lines, start=1):
            if len(line) > LINE_COLUMNS_MAX:
                yield module.finding(
                    "R5", number, f"{len(line)} columns", f"the limit is {LINE_COLUMNS_MAX}"
                )
            if _FIX_ME in line:
                yield module.finding("R5", number, _FIX_ME, "fix it before it lands")
            if _TO_DO.search(line):
                yield module.finding(
                    "R5", number, "a to-do without a reason", "write '# TO" + "DO(12): why'"
                )
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    yield module.finding(
                        "R5",
                        node.lineno,
                        f"{node.name} has {length} lines",
                        f"split it; the limit is {FUNCTION_LINES_MAX}",
                    )


def r8_errors(tree: SourceTree) -> Iterator[Finding]:
    """Yield errors outside the tree, errors without meaning, and handlers that catch everything."""
    ours = _error_names(tree)
    for module in tree.shipped:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield from _error_class(module, node, ours)
            elif isinstance(node, ast.Raise) and node.exc is not None:
                raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                if dotted(raised) in BANNED_RAISES:
                    yield module.finding(
                        "R8",
                        node.lineno,
                        f"raises {dotted(raised)}",
                        "raise an error of errors.py that names culprit and value",
                    )
            elif isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
                yield from _broad_handler(module, node)
            elif (
                isinstance(node, ast.Call)
                and dotted(node.func).rpartition(".")[2] == "suppress"
                and any(_is_broad(argument) for argument in node.args)
            ):
                yield module.finding(
                    "R8", node.lineno, "suppresses everything", "name what may happen"
                )


def r9_types(tree: SourceTree) -> Iterator[Finding]:
    """Yield data types that can change and integers without a unit."""
    structs = _struct_classes(tree)
    for module in tree.shipped:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            data_class = _dataclass_decorator(node)
            changes = data_class is not None and not _keyword_is_true(data_class, "frozen")
            if changes and node.name not in STATE_OWNERS:
                yield module.finding(
                    "R9",
                    node.lineno,
                    f"{node.name} is a data type that can change",
                    "write @dataclass(frozen=True, slots=True), or a class that owns its state",
                )
            if node.name in structs and not structs[node.name]:
                yield module.finding(
                    "R9", node.lineno, f"{node.name} can change", "pass frozen=True to the struct"
                )
            is_tuple = any(dotted(base).endswith("NamedTuple") for base in node.bases)
            if data_class is not None or node.name in structs or is_tuple:
                yield from _unitless_fields(module, node)


def _error_names(tree: SourceTree) -> frozenset[str]:
    """Return the classes of the error files that descend from a root, roots included."""
    bases = {
        node.name: [dotted(base).rpartition(".")[2] for base in node.bases]
        for module in tree.shipped
        if module.path in ERROR_FILES
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    }
    known = [name for name in ERROR_ROOTS if name in bases]
    for _ in bases:
        known += [
            name
            for name, above in bases.items()
            if name not in known and any(base in known for base in above)
        ]
    return frozenset(known)


def _error_class(module: Module, node: ast.ClassDef, ours: frozenset[str]) -> Iterator[Finding]:
    bases = [dotted(base).rpartition(".")[2] for base in node.bases]
    if not any(base.endswith(("Error", "Exception")) or base in ours for base in bases):
        return
    if module.path not in ERROR_FILES:
        yield module.finding(
            "R8", node.lineno, f"{node.name} is defined here", "define it in errors.py"
        )
    elif node.name not in ours:
        yield module.finding(
            "R8", node.lineno, f"{node.name} stands outside the tree", "derive it from KvdError"
        )


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(_is_broad(item) for item in caught.elts)
    return caught is None or dotted(caught) in {"Exception", "BaseException"}


def _broad_handler(module: Module, node: ast.ExceptHandler) -> Iterator[Finding]:
    """Allow cleaning up before raising again, and the marked rim of a loop."""
    last = node.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return
    marked = RIM_MARK in module.lines[node.lineno - 1]
    if not (marked and is_within(module.name, *RIM_PACKAGES)):
        yield module.finding(
            "R8",
            node.lineno,
            "catches everything",
            f"name what may happen; at a loop's rim write '{RIM_MARK}why' on the line",
        )


def _dataclass_decorator(node: ast.ClassDef) -> ast.expr | None:
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if dotted(target) in {"dataclass", "dataclasses.dataclass"}:
            return decorator
    return None


def _keyword_is_true(call: ast.expr, name: str) -> bool:
    return isinstance(call, ast.Call) and any(
        keyword.arg == name
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in call.keywords
    )


def _struct_classes(tree: SourceTree) -> dict[str, bool]:
    """Return every msgspec struct by class name, and whether it is frozen."""
    classes = [
        node
        for module in tree.shipped
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    found: dict[str, bool] = {}
    for _ in classes:
        size = len(found)
        for node in classes:
            bases = [dotted(base) for base in node.bases]
            if node.name in found or not any(
                base in {"Struct", "msgspec.Struct"} or base in found for base in bases
            ):
                continue
            frozen = any(
                keyword.arg == "frozen" and getattr(keyword.value, "value", None) is True
                for keyword in node.keywords
            )
            found[node.name] = frozen or any(found.get(base, False) for base in bases)
        if len(found) == size:
            break
    return found


def _unitless_fields(module: Module, node: ast.ClassDef) -> Iterator[Finding]:
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not _is_int(field.annotation):
            continue
        name = dotted(field.target)
        if not UNIT_NAME.search(name) and not IDENTIFYING_NAME.search(name):
            yield module.finding(
                "R9",
                field.lineno,
                f"{node.name}.{name} is an integer of no unit",
                "end the name in its unit (_bytes, _pages, _count, ...) or use a NewType",
            )


def _is_int(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.BinOp):
        return _is_int(annotation.left) or _is_int(annotation.right)
    return dotted(annotation) == "int"
