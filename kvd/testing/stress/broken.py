"""How the reference allocator says that kvd and it do not agree."""

from typing import Never

from kvd.errors import InvariantError


def broken(name: str, message: str) -> Never:
    """Raise InvariantError for a check of the stress harness."""
    raise InvariantError(f"stress.{name}", message)


def require(holds: object, name: str, message: str) -> None:
    """Raise InvariantError for a check of the stress harness unless something holds."""
    if not holds:
        broken(name, message)
