"""Every rule is shown code that breaks it, and has to say so; and the same code made right."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.arch.contract import r10_invariants, r11_messages, r11_sleeps, r11_unit_tests
from tests.arch.layers import r1_layers, r2_foreign, r3_testing, r6_names
from tests.arch.purity import r4_purity, r7_settings
from tests.arch.shape import r5_sizes, r8_errors, r9_types
from tests.arch.source import Finding, SourceTree

Rule = Callable[[SourceTree], Iterator[Finding]]
Files = dict[str, str]


class Case(NamedTuple):
    """Files that break a rule at one place, and what the finding must mention."""

    rule: Rule
    files: Files
    path: str
    line: int
    mentions: str


VERSION = {"proto/kvd_proto/version.py": "PROTOCOL_VERSION = 2\n"}
GOLDEN = {"tests/proto/golden.json": '{"protocol_version": 2, "messages": {"take": "93"}}'}
TAKE = {"proto/kvd_proto/operations.py": 'class Take(Base, frozen=True, tag="take"): ...\n'}
ERRORS = {
    "proto/kvd_proto/errors.py": "class KvdError(Exception): ...\n",
    "kvd/errors.py": "class PlanError(KvdError): ...\n",
}
CHECKS = {"kvd/alloc/checks.py": 'CHECKS = (\n    Check(name="band.order", fatal=True),\n)\n'}
BAND = {"kvd/alloc/band.py": '"""A band.\n\nInvariants:\n    band.order: start <= end;\n"""\n'}
BAND_TEST = {"tests/unit/test_alloc_band.py": 'expect("band.order")\n'}

BROKEN = {
    "import against the layers": Case(
        r1_layers,
        {"kvd/plan/a.py": "x = 1\nfrom kvd.alloc import b\n", "kvd/alloc/b.py": ""},
        "kvd/plan/a.py",
        2,
        "kvd.alloc.b",
    ),
    "import against the layers inside a function": Case(
        r1_layers,
        {"kvd/plan/a.py": "def f():\n    import kvd.serve.b\n", "kvd/serve/b.py": ""},
        "kvd/plan/a.py",
        2,
        "kvd.serve.b",
    ),
    "relative import": Case(
        r1_layers,
        {"kvd/plan/a.py": "from .b import c\n", "kvd/plan/b.py": ""},
        "kvd/plan/a.py",
        1,
        "relative",
    ),
    "import cycle": Case(
        r1_layers,
        {"kvd/plan/a.py": "import kvd.plan.b\n", "kvd/plan/b.py": "import kvd.plan.a\n"},
        "kvd/plan/b.py",
        1,
        "kvd.plan.a -> kvd.plan.b -> kvd.plan.a",
    ),
    "package without a layer": Case(
        r1_layers, {"kvd/extra/a.py": ""}, "kvd/extra/a.py", 1, "kvd.extra.a"
    ),
    "library in the protocol": Case(
        r2_foreign,
        {"proto/kvd_proto/a.py": "import msgspec\nimport numpy\n"},
        "proto/kvd_proto/a.py",
        2,
        "numpy",
    ),
    "torch with the client": Case(
        r2_foreign,
        {"client/kvd_client/a.py": "import zmq\nimport torch\n"},
        "client/kvd_client/a.py",
        2,
        "torch",
    ),
    "daemon in the client": Case(
        r2_foreign,
        {"client/kvd_client/a.py": "from kvd import units\n"},
        "client/kvd_client/a.py",
        1,
        "kvd",
    ),
    "test kit in the daemon": Case(
        r3_testing,
        {"kvd/serve/a.py": "from kvd.testing.model import Model\n"},
        "kvd/serve/a.py",
        1,
        "test kit",
    ),
    "clock": Case(r4_purity, {"kvd/alloc/a.py": "import time\n"}, "kvd/alloc/a.py", 1, "time"),
    "print": Case(r4_purity, {"kvd/size/a.py": "print(1)\n"}, "kvd/size/a.py", 1, "print"),
    "numpy random": Case(
        r4_purity,
        {"kvd/engine/a.py": "import numpy as np\nx = np.random.default_rng()\n"},
        "kvd/engine/a.py",
        2,
        "draws",
    ),
    "loop over a set": Case(
        r4_purity,
        {"kvd/alloc/a.py": "s: set[int] = set()\nfor x in s:\n    pass\n"},
        "kvd/alloc/a.py",
        2,
        "hash order",
    ),
    "list of a set expression": Case(
        r4_purity,
        {"kvd/alloc/a.py": "def f(a: frozenset[int]):\n    return list(a - {1})\n"},
        "kvd/alloc/a.py",
        2,
        "hash order",
    ),
    "pop from a set attribute": Case(
        r4_purity,
        {
            "kvd/alloc/a.py": (
                "class A:\n"
                "    def __init__(self):\n"
                "        self.free = {1}\n"
                "    def f(self):\n"
                "        return self.free.pop()\n"
            )
        },
        "kvd/alloc/a.py",
        5,
        "self.free",
    ),
    "long module": Case(
        r5_sizes, {"kvd/a.py": '"""A."""\n' + "x = 1\n" * 500}, "kvd/a.py", 501, "501 lines"
    ),
    "long function": Case(
        r5_sizes,
        {"kvd/a.py": '"""A."""\ndef f():\n' + "    x = 1\n" * 70},
        "kvd/a.py",
        2,
        "f has 71 lines",
    ),
    "long line": Case(
        r5_sizes, {"kvd/a.py": '"""A."""\n# ' + "x" * 99}, "kvd/a.py", 2, "101 columns"
    ),
    "missing docstring": Case(r5_sizes, {"kvd/a.py": "x = 1\n"}, "kvd/a.py", 1, "docstring"),
    "unfinished work": Case(
        r5_sizes, {"kvd/a.py": '"""A."""\n# FIX' + "ME\n"}, "kvd/a.py", 2, "FIX" + "ME"
    ),
    "to-do without a reason": Case(
        r5_sizes, {"kvd/a.py": '"""A."""\n# TO' + "DO: later\n"}, "kvd/a.py", 2, "to-do"
    ),
    "marker in a folder": Case(
        r6_names, {"proto/__init__.py": ""}, "proto/__init__.py", 1, "no package"
    ),
    "import of a folder": Case(
        r6_names,
        {"tests/unit/test_a.py": "from client.kvd_client import calls\n"},
        "tests/unit/test_a.py",
        1,
        "client.kvd_client",
    ),
    "environment": Case(
        r7_settings,
        {"kvd/serve/a.py": "import os\nx = os.environ['X']\n"},
        "kvd/serve/a.py",
        2,
        "os.environ",
    ),
    "variable read by click": Case(
        r7_settings, {"kvd/cli/a.py": "option('--x', envvar='X')\n"}, "kvd/cli/a.py", 1, "click"
    ),
    "settings file": Case(
        r7_settings, {"kvd/hold/a.py": "import tomllib\n"}, "kvd/hold/a.py", 1, "tomllib"
    ),
    "error outside errors.py": Case(
        r8_errors,
        {**ERRORS, "kvd/plan/a.py": "class B(PlanError): ...\n"},
        "kvd/plan/a.py",
        1,
        "B is defined here",
    ),
    "error outside the tree": Case(
        r8_errors,
        {**ERRORS, "kvd/errors.py": "class B(ValueError): ...\n"},
        "kvd/errors.py",
        1,
        "outside the tree",
    ),
    "meaningless error": Case(
        r8_errors,
        {"kvd/plan/a.py": "raise ValueError('x')\n"},
        "kvd/plan/a.py",
        1,
        "raises ValueError",
    ),
    "handler for everything": Case(
        r8_errors,
        {"kvd/serve/a.py": "try:\n    f()\nexcept Exception:\n    pass\n"},
        "kvd/serve/a.py",
        3,
        "catches everything",
    ),
    "rim mark in a pure package": Case(
        r8_errors,
        {"kvd/plan/a.py": "try:\n    f()\nexcept Exception:  # rim: no\n    pass\n"},
        "kvd/plan/a.py",
        3,
        "catches everything",
    ),
    "everything suppressed": Case(
        r8_errors,
        {"kvd/serve/a.py": "with contextlib.suppress(Exception):\n    f()\n"},
        "kvd/serve/a.py",
        1,
        "suppresses",
    ),
    "data class that changes": Case(
        r9_types,
        {"kvd/plan/a.py": "@dataclass(slots=True)\nclass A:\n    x: str\n"},
        "kvd/plan/a.py",
        2,
        "can change",
    ),
    "struct that changes": Case(
        r9_types,
        {"proto/kvd_proto/a.py": "class A(msgspec.Struct):\n    x: str\n"},
        "proto/kvd_proto/a.py",
        1,
        "can change",
    ),
    "integer without a unit": Case(
        r9_types,
        {"kvd/plan/a.py": "@dataclass(frozen=True)\nclass A:\n    size: int | None\n"},
        "kvd/plan/a.py",
        3,
        "A.size",
    ),
    "undocumented invariant": Case(
        r10_invariants, {**CHECKS, **BAND_TEST}, "kvd/alloc/checks.py", 2, "documented nowhere"
    ),
    "unregistered invariant": Case(
        r10_invariants, {**BAND, **BAND_TEST}, "kvd/alloc/band.py", 4, "no registered check"
    ),
    "untested invariant": Case(
        r10_invariants, {**CHECKS, **BAND}, "kvd/alloc/checks.py", 2, "occurs in no test"
    ),
    "decision on an estimate": Case(
        r10_invariants,
        {"kvd/alloc/a.py": "from kvd.price.search import estimate_room\n"},
        "kvd/alloc/a.py",
        1,
        "estimate",
    ),
    "module without a unit test": Case(
        r11_unit_tests,
        {"kvd/alloc/a.py": "def f(): ...\n", "tests/unit/test_alloc_b.py": ""},
        "kvd/alloc/a.py",
        1,
        "no unit test",
    ),
    "tag used twice": Case(
        r11_messages,
        {
            **VERSION,
            **GOLDEN,
            "proto/kvd_proto/operations.py": (
                'class A(Base, tag="take"): ...\n'
                'class B(Base, tag="take"): ...\n'
                "Any: TypeAlias = A | B\n"
            ),
        },
        "proto/kvd_proto/operations.py",
        3,
        "share the tag 'take'",
    ),
    "message without golden bytes": Case(
        r11_messages,
        {
            **VERSION,
            **GOLDEN,
            "proto/kvd_proto/operations.py": 'class A(Base, tag="free"): ...\n',
        },
        "proto/kvd_proto/operations.py",
        1,
        "'free' has no golden bytes",
    ),
    "golden bytes of another version": Case(
        r11_messages,
        {**GOLDEN, **TAKE, "proto/kvd_proto/version.py": "PROTOCOL_VERSION = 3\n"},
        "tests/proto/golden.json",
        1,
        "the code speaks 3",
    ),
    "no golden bytes at all": Case(
        r11_messages, {**VERSION, **TAKE}, "tests/proto/golden.json", 1, "no golden bytes"
    ),
    "sleeping test": Case(
        r11_sleeps,
        {"tests/unit/test_a.py": "import time\ntime.sleep(1)\n"},
        "tests/unit/test_a.py",
        2,
        "sleeps",
    ),
}

RIGHT: dict[str, tuple[Rule, Files]] = {
    "import down the layers": (
        r1_layers,
        {"kvd/alloc/a.py": "from kvd.plan import b\n", "kvd/plan/b.py": "import kvd.units\n"},
    ),
    "torch inside a function of the client": (
        r2_foreign,
        {"client/kvd_client/a.py": "def f():\n    import torch\n"},
    ),
    "test kit in the command line": (r3_testing, {"kvd/cli/a.py": "import kvd.testing.a\n"}),
    "sorted set": (
        r4_purity,
        {"kvd/alloc/a.py": "s = {1}\nfor x in sorted(s):\n    y = len(s), sum(z for z in s)\n"},
    ),
    "to-do with a reason": (r5_sizes, {"kvd/a.py": '"""A."""\n# TO' + "DO(3): until then\n"}),
    "marker in a package": (r6_names, {"proto/kvd_proto/__init__.py": ""}),
    "environment in its place": (r7_settings, {"kvd/config.py": "import os\nx = os.environ\n"}),
    "error in its place": (r8_errors, ERRORS),
    "marked rim": (
        r8_errors,
        {"kvd/serve/a.py": "try:\n    f()\nexcept Exception:  # rim: one peer only\n    g()\n"},
    ),
    "clean up and raise again": (
        r8_errors,
        {"kvd/plan/a.py": "try:\n    f()\nexcept BaseException:\n    g()\n    raise\n"},
    ),
    "state owner": (r9_types, {"kvd/serve/a.py": "@dataclass\nclass Session:\n    x: str\n"}),
    "frozen by its base": (
        r9_types,
        {
            "proto/kvd_proto/a.py": "class A(Struct, frozen=True): ...\n",
            "proto/kvd_proto/b.py": "class B(A):\n    arena_bytes_max: int\n    step: int\n",
        },
    ),
    "invariant in all three places": (r10_invariants, {**CHECKS, **BAND, **BAND_TEST}),
    "module with its unit test": (
        r11_unit_tests,
        {"kvd/alloc/a.py": "def f(): ...\n", "tests/unit/test_alloc_a.py": ""},
    ),
    "message with its golden bytes": (r11_messages, {**VERSION, **GOLDEN, **TAKE}),
    "turn given up": (r11_sleeps, {"tests/unit/test_a.py": "await asyncio.sleep(0)\n"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_names_the_place_that_breaks_it(name: str) -> None:
    case = BROKEN[name]
    found = list(case.rule(SourceTree(case.files)))
    assert [(item.path, item.line) for item in found] == [(case.path, case.line)], found
    assert case.mentions in found[0].message
    assert found[0].remedy


@pytest.mark.parametrize("name", RIGHT)
def test_a_rule_leaves_the_right_form_alone(name: str) -> None:
    rule, files = RIGHT[name]
    assert list(rule(SourceTree(files))) == []


def test_a_finding_prints_rule_file_line_and_remedy() -> None:
    finding = Finding("R1", "kvd/a.py", 3, "what", "how")
    assert str(finding) == "R1 kvd/a.py:3: what; how"
