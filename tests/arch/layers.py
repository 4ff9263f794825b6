"""R1, R2, R3, R6: who may import whom."""

import sys
from collections.abc import Iterator

from tests.arch.source import Finding, Import, Module, SourceTree, is_within

ORDER = (
    "kvd.limits",
    "kvd.units",
    "kvd.errors",
    "kvd.declare",
    "kvd.plan",
    "kvd.price",
    "kvd.size",
    "kvd.build",
    "kvd.alloc",
    "kvd.cache",
    "kvd.engine",
)
"""The pure packages, low to high; each may import what stands before it."""

PURE = ORDER[3:]

_BASE = ("kvd_proto", "kvd.limits", "kvd.units", "kvd.errors")
_RIM = ("kvd.setting", "kvd.config", "kvd.presets")
_MEMORY = ("kvd_client.device",)

ALLOWED: dict[str, tuple[str, ...]] = {
    "kvd_proto": (),
    "kvd_client": ("kvd_proto",),
    **{name: ("kvd_proto", *ORDER[:place]) for place, name in enumerate(ORDER)},
    "kvd.setting": _BASE,
    "kvd.config": (*_BASE, "kvd.setting"),
    "kvd.presets": _BASE,
    "kvd.hold": (*_BASE, *_RIM, *_MEMORY),
    "kvd.trace": ("kvd_proto", *ORDER),
    "kvd.serve": ("kvd_proto", *ORDER, *_RIM, *_MEMORY, "kvd.hold", "kvd.trace"),
    "kvd.testing": ("kvd_proto", "kvd_client", *ORDER, "kvd.presets", "kvd.trace"),
    "kvd.cli": ("kvd_proto", "kvd_client", "kvd"),
}
"""For every package what else of ours it may import; itself always, ``kvd`` for the version."""

_PROTO_LIBRARIES = ("msgspec", "xxhash")
_CLIENT_LIBRARIES = ("msgspec", "xxhash", "zmq", "numpy")
_CLIENT_LAZY_LIBRARIES = ("torch", "cupy", "cuda", "transformers", "sglang", "nixl")
_CLIENT_CUDA = "kvd_client.device.cuda"


def r1_layers(tree: SourceTree) -> Iterator[Finding]:
    """Yield imports against the layers, relative imports and cycles."""
    for module in tree.shipped:
        package = _package(module.name)
        if package is None:
            if module.name != "kvd":
                yield module.finding(
                    "R1", 1, f"{module.name} has no layer", "add it to tests/arch/layers.py"
                )
            continue
        allowed = (package, *ALLOWED[package])
        for item in module.imports:
            if item.relative:
                yield module.finding(
                    "R1", item.line, "relative import", "write the import from the package's root"
                )
        for target, item in tree.imported_modules(module):
            if target != "kvd" and not is_within(target, *allowed):
                yield module.finding(
                    "R1",
                    item.line,
                    f"{package} imports {target}, which is not below it",
                    "move the code down, or pass the value in",
                )
    yield from _cycles(tree)


def r2_foreign(tree: SourceTree) -> Iterator[Finding]:
    """Yield libraries that kvd_proto and kvd_client may not import, or not at once."""
    for module in tree.within("kvd_proto", "kvd_client"):
        in_proto = is_within(module.name, "kvd_proto")
        for item in module.imports:
            if item.relative or _may_import(module, item, in_proto=in_proto):
                continue
            top = item.target.partition(".")[0]
            if not in_proto and top in _CLIENT_LAZY_LIBRARIES:
                message = f"{top} is imported with the module"
                remedy = "import it inside the function that needs it"
            else:
                message = f"{top} may not be imported here"
                allowed = _PROTO_LIBRARIES if in_proto else _CLIENT_LIBRARIES
                remedy = "allowed are the standard library and " + ", ".join(allowed)
            yield module.finding("R2", item.line, message, remedy)


def r3_testing(tree: SourceTree) -> Iterator[Finding]:
    """Yield imports of the test kit by anything but itself, the command line and tests."""
    for module in tree.shipped:
        if is_within(module.name, "kvd.testing", "kvd.cli"):
            continue
        for item in module.imports:
            if is_within(item.target, "kvd.testing"):
                yield module.finding(
                    "R3", item.line, f"{module.name} imports the test kit", "leave it to kvd.cli"
                )


def r6_names(tree: SourceTree) -> Iterator[Finding]:
    """Yield package markers in folders that are no packages, and imports of those folders."""
    for folder in ("client", "proto", "tests", "deploy"):
        path = f"{folder}/__init__.py"
        if path in tree.files:
            yield Finding("R6", path, 1, f"{folder} is no package", "delete the file")
    for module in tree.modules:
        for item in module.imports:
            if not item.relative and item.target.partition(".")[0] in {"client", "proto"}:
                yield module.finding(
                    "R6",
                    item.line,
                    f"{item.target} names a folder, which is another copy of the module",
                    "import kvd_client or kvd_proto",
                )


def _package(name: str) -> str | None:
    return next((package for package in ALLOWED if is_within(name, package)), None)


def _may_import(module: Module, item: Import, *, in_proto: bool) -> bool:
    top = item.target.partition(".")[0]
    # R1 looks at our own packages, R6 at the folders' names.
    if top in sys.stdlib_module_names or top in {"kvd", "kvd_proto", "kvd_client"}:
        return top != "kvd"
    if top in {"client", "proto"}:
        return True
    if in_proto:
        return top in _PROTO_LIBRARIES
    if top in _CLIENT_LIBRARIES:
        return True
    # Whoever imports the CUDA device has already decided to use it.
    return top in _CLIENT_LAZY_LIBRARIES and (item.lazy or is_within(module.name, _CLIENT_CUDA))


def _cycles(tree: SourceTree) -> Iterator[Finding]:
    """Yield one finding per import that closes a cycle, found depth first."""
    done: list[str] = []
    path: list[str] = []

    def visit(name: str) -> Iterator[Finding]:
        path.append(name)
        module = tree.by_name[name]
        for target, item in tree.imported_modules(module):
            if target in path and target != name:
                cycle = " -> ".join([*path[path.index(target) :], target])
                yield module.finding(
                    "R1", item.line, f"import cycle {cycle}", "move the shared part into a module"
                )
            elif target not in path and target not in done:
                yield from visit(target)
        path.pop()
        done.append(name)

    for name in tree.by_name:
        if name not in done:
            yield from visit(name)
