"""How the reference allocator says that kvd and it do not agree."""

from typing import Never

from kvd.errors import StressFailure
from kvd.testing.stress.failure import CheckName


def broken(name: str, message: str) -> Never:
    """Raise StressFailure for a check of the stress harness."""
    raise StressFailure(CheckName(f"stress.{name}"), message)


def require(holds: object, name: str, message: str) -> None:
    """Raise StressFailure for a check of the stress harness unless something holds."""
    if not holds:
        broken(name, message)
