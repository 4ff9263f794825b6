"""Numbers that programs choose for values, copies and transfers.

They ascend, so that a number that was used tells itself from one that never was, for all time and
at no cost in memory.
"""

from kvd.errors import OperationError
from kvd_proto.errors import ErrorCode

NUMBER_MAX = (1 << 63) - 1


class Numbers:
    """The numbers of one kind of thing."""

    def __init__(self, what: str) -> None:
        """Start with none used; ``what`` names the kind in errors."""
        self.highest = 0
        self._what = what

    def check_new(self, number: int) -> None:
        """Raise OperationError unless the number may be used now."""
        if not self.highest < number <= NUMBER_MAX:
            raise OperationError(
                f"{self._what} {number} cannot be opened: numbers are positive and ascend, the "
                f"highest so far is {self.highest}",
                code=ErrorCode.BAD_NUMBER,
            )

    def use(self, number: int) -> None:
        """Take a number that was checked into use."""
        assert number > self.highest
        self.highest = number

    def unknown(self, number: int, problem: str) -> OperationError:
        """Return the error about a number that nothing has which could do what is asked."""
        return OperationError(f"{self._what} {number} {problem}", code=ErrorCode.UNKNOWN_NUMBER)
