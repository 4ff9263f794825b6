"""Carries out the parts of a script over a transport that loses messages."""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

from kvd.errors import LostError
from kvd.testing.stress.hand import Hand, PlanForward, left_by_error
from kvd.testing.stress.host_rank import HostRank
from kvd.testing.stress.script import SendBatch
from kvd_client import Batch
from kvd_client.client import BatchBlock, LaunchBlock
from kvd_client.launch import Step

BATCH_ABORT_PERMILLE: Final = 20
"""Of how many batches the block is left by an exception first."""


class InsistingHand(Hand[HostRank]):
    """Carries out parts over a transport that loses messages."""

    def __init__(self, rank: HostRank, *, plan_forward: PlanForward, seed: str) -> None:
        super().__init__(rank, follows=False, plan_forward=plan_forward)
        self._random = Random(seed)
        self.aborted_batches_count = 0

    def insist(self, call: Callable[[], object]) -> None:
        """Call once; while messages get lost, have the session complete what it owes."""
        while True:
            try:
                call()
            except LostError:
                call = self.rank.client.ping
            else:
                return

    def open_batch(self, part: SendBatch) -> tuple[BatchBlock, Batch]:
        """Return a block with everything asked; what is due before is sent until it arrives."""
        while True:
            try:
                return super().open_batch(part)
            except LostError:
                continue

    def close(self, *, aborts: bool) -> None:
        """Leave the launch block; the report of one that was left by an exception may come late."""
        with suppress(LostError):
            super().close(aborts=aborts)

    def _send(self, part: SendBatch, *, first: bool) -> None:
        if self._random.randrange(1000) < BATCH_ABORT_PERMILLE:
            block, _ = self.open_batch(part)
            left_by_error(block)
            self.aborted_batches_count += 1
        super()._send(part, first=first)

    def _leave_batch(self, block: BatchBlock) -> None:
        self.insist(lambda: block.__exit__(None, None, None))

    def _enter_launch(self, block: LaunchBlock) -> Step:
        while True:
            try:
                return block.__enter__()
            except LostError:
                continue
