"""A setting that nobody reads is a promise that nobody keeps."""

import re

import pytest

from kvd.config import section_names, specs
from tests.arch.source import SourceTree, read_repository

NAMES = [name for section in section_names() for name in specs(section)]


@pytest.fixture(scope="module")
def repository() -> SourceTree:
    return read_repository()


@pytest.mark.parametrize("name", NAMES)
def test_somebody_reads_the_setting(name: str, repository: SourceTree) -> None:
    reads = re.compile(rf"\.{name}\b|\"{name}\"")
    readers = [
        module.path
        for module in repository.within("kvd")
        if module.path != "kvd/config.py" and reads.search(module.text)
    ]
    assert readers, f"nothing in kvd reads {name}: use it, or take it out of kvd/config.py"
