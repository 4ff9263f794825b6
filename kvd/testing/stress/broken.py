"""How the reference allocator says that kvd and it do not agree."""

from typing import Never

from kvd.testing.stress.failure import StressFailure


def broken(name: str, message: str) -> Never:
    """Raise StressFailure for a check of the stress harness."""
    raise StressFailure(f"stress.{name}", message)


def require(holds: object, name: str, message: str) -> None:
    """Raise StressFailure for a check of the stress harness unless something holds."""
    if not holds:
        broken(name, message)
