"""Whether what was turned down is explained by the models: refusals, and what was called wrong use."""

from typing import TYPE_CHECKING

from kvd.errors import OperationError
from kvd.testing.stress.broken import broken, require
from kvd.testing.stress.request_books import RequestBooks
from kvd.testing.stress.use_books import UseBooks
from kvd_proto.operations import Operation
from kvd_proto.outcomes import Pump, Reason, Refusal, Skipped

if TYPE_CHECKING:
    from kvd.testing.stress.oracle import Oracle


def check_skipped(books: RequestBooks, operation: Operation, result: Skipped) -> None:
    """Raise InvariantError unless an operation names a request refused in its batch."""
    require(
        result.request in books.refused_now,
        "answers",
        f"{type(operation).__name__} was skipped for request {result.request}, which was not "
        f"refused in this batch; refused were {sorted(books.refused_now)}",
    )


def check_refusal(books: RequestBooks, uses: UseBooks, result: Refusal | Pump) -> None:
    """Raise InvariantError unless a refusal's reason is one that there is."""
    if isinstance(result, Pump):
        require(
            result.transfers == uses.awaited,
            "answers",
            f"transfers {result.transfers} are said to be in the way, open are {uses.awaited}",
        )
    elif result.reason is Reason.NO_ROWS:
        require(
            len(books.held) == books.row_count - 1,
            "answers",
            f"no row is free, and {len(books.held)} of {books.row_count - 1} are taken",
        )


def check_error(oracle: "Oracle", program: int, operation: Operation, error: Exception) -> None:
    """Raise InvariantError unless an operation was wrong use in the way that is said."""
    if not isinstance(error, OperationError):
        broken("answers", f"{type(operation).__name__} ended by {error!r}")
