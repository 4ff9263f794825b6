"""Programs on which something did not hold once, made small: each is clean now."""

from pathlib import Path

import pytest

from kvd.testing.stress.program import decode_program
from kvd.testing.stress.run import run

PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.json"))


@pytest.mark.parametrize("path", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_what_was_found_once_does_not_come_back(path: Path) -> None:
    assert run(decode_program(path.read_bytes())).failure is None


def test_there_are_programs() -> None:
    assert PROGRAMS
