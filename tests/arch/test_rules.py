"""The rules of the house, each walked over every file of this checkout."""

from collections.abc import Callable, Iterator

import pytest

from tests.arch.contract import r10_invariants, r11_messages, r11_sleeps, r11_unit_tests
from tests.arch.layers import r1_layers, r2_foreign, r3_testing, r6_names
from tests.arch.purity import r4_purity, r7_settings
from tests.arch.shape import r5_sizes, r8_errors, r9_types
from tests.arch.source import Finding, SourceTree, read_repository

RULES: tuple[Callable[[SourceTree], Iterator[Finding]], ...] = (
    r1_layers,
    r2_foreign,
    r3_testing,
    r4_purity,
    r5_sizes,
    r6_names,
    r7_settings,
    r8_errors,
    r9_types,
    r10_invariants,
    r11_unit_tests,
    r11_messages,
    r11_sleeps,
)


@pytest.fixture(scope="module")
def repository() -> SourceTree:
    return read_repository()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_sources_keep(
    rule: Callable[[SourceTree], Iterator[Finding]], repository: SourceTree
) -> None:
    found = [str(finding) for finding in rule(repository)]
    assert not found, "\n".join(["", *found])


def test_the_repository_is_read_whole(repository: SourceTree) -> None:
    assert {"kvd.units", "kvd_proto.errors", "kvd_client"} <= set(repository.by_name)
