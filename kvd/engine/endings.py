"""Which rank has said that a copy or a transfer is over, and what is therefore to be released.

A rank's word is one-way and may be repeated. What counts is that the last rank has spoken: then the
daemon logs its own entry `Released` at the next gate, so that pages come back at the same place of
the log for everybody, however late the ranks were.

Invariants:
    ending.due_complete: words are about what runs and of ranks that are there; a copy or transfer
        is due exactly if all ranks have spoken, but for a transfer that is in quarantine.
"""

from kvd.alloc.checks import CheckMonitor
from kvd.alloc.copies import Copies
from kvd.alloc.transfers import Transfers
from kvd_proto.operations import CopyEnded, Released, TransferEnded


class Endings:
    """What ranks said about the copies and transfers of one incarnation."""

    def __init__(self, ranks: tuple[int, ...], copies: Copies, transfers: Transfers) -> None:
        self._ranks = ranks
        self._copies = copies
        self._transfers = transfers
        self._failed: dict[int, dict[int, bool]] = {}
        """Per copy and rank: whether it failed there."""
        self._astray: dict[int, dict[int, bool]] = {}
        """Per transfer and rank: whether its peer may go on there."""
        self._due_copies: dict[int, None] = {}
        self._due_transfers: dict[int, None] = {}

    @property
    def is_due(self) -> bool:
        """Return whether there is something to release."""
        return bool(self._due_copies or self._due_transfers)

    def copy_ended(self, rank: int, fact: CopyEnded) -> bool:
        """Take in a rank's word about a copy; return whether it is news.

        Raises OperationError for a copy that nobody submitted.
        """
        if not self._copies.is_running(fact.copy):
            if self._copies.was_over(fact.copy):
                return False
            raise self._copies.numbers.unknown(fact.copy, "was never submitted")
        said = self._failed.setdefault(fact.copy, {})
        if rank in said:
            return False
        said[rank] = fact.failed
        if len(said) == len(self._ranks):
            self._due_copies[fact.copy] = None
        return True

    def transfer_ended(self, rank: int, fact: TransferEnded) -> bool:
        """Take in a rank's word about a transfer; return whether it is news.

        Proof that the peer let go may follow a failure without one. Raises OperationError for a
        transfer that no peer knows of.
        """
        number = fact.transfer
        if not self._transfers.is_running(number):
            if self._transfers.was_over(number):
                return False
            raise self._transfers.numbers.unknown(number, "was never posted or published")
        said = self._astray.setdefault(number, {})
        is_astray = fact.failed and not fact.proven
        if rank in said and (is_astray or not said[rank]):
            return False
        said[rank] = is_astray
        if len(said) == len(self._ranks):
            self._due_transfers[number] = None
        return True

    def take_due(self) -> Released | None:
        """Return what is to be released or put into quarantine now; None if nothing is."""
        copies, transfers = tuple(self._due_copies), list(self._due_transfers)
        self._due_copies, self._due_transfers = {}, {}
        failed = [number for number in copies if any(self._failed.pop(number).values())]
        astray = [number for number in transfers if any(self._astray[number].values())]
        over = [number for number in transfers if number not in astray]
        for number in over:
            del self._astray[number]
        news = [number for number in astray if not self._transfers.open[number].quarantined]
        if not (copies or over or news):
            return None
        return Released(copies, tuple(failed), tuple(over), tuple(news))

    def check(self, monitor: CheckMonitor) -> None:
        """Check what ranks said against what runs: ending.due_complete."""
        self._check_words(monitor, "copy", self._failed, self._due_copies)
        self._check_words(monitor, "transfer", self._astray, self._due_transfers)

    def _check_words(
        self,
        monitor: CheckMonitor,
        what: str,
        said_of: dict[int, dict[int, bool]],
        due: dict[int, None],
    ) -> None:
        is_running = self._copies.is_running if what == "copy" else self._transfers.is_running
        for number in (*said_of, *due):
            said = said_of.get(number, {})
            complete = sorted(said) == sorted(self._ranks)
            transfer = self._transfers.open.get(number) if what == "transfer" else None
            waits = number not in due and not (transfer is not None and transfer.quarantined)
            known = is_running(number) and set(said) <= set(self._ranks)
            if not known or complete == waits or (number in due and not complete):
                monitor.fail(
                    "ending.due_complete",
                    f"ranks {sorted(said)} of {list(self._ranks)} say that {what} {number} is "
                    f"over, which {'is' if number in due else 'is not'} due",
                )
