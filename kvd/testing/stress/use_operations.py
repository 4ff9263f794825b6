"""Operations on copies and transfers, each with what the reference says to its outcome."""

from collections.abc import Callable
from typing import Any

from kvd.engine.stage import StageEngine
from kvd.testing.packed import int64s
from kvd.testing.stress.broken import require
from kvd.testing.stress.judge import Judge
from kvd.testing.stress.told import Told
from kvd.testing.stress.use_books import UseBooks
from kvd_proto.operations import (
    BackupSubmit,
    CancelHold,
    Hold,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Post,
    Publish,
)
from kvd_proto.outcomes import Done, Freed, Resolved

Apply = Callable[[int, Any, Any, Told], None]


class UseOperations:
    """Takes in what was served of a load, a backup or a transfer."""

    def __init__(self, engine: StageEngine, judge: Judge, uses: UseBooks) -> None:
        self.engine = engine
        self.judge = judge
        self.uses = uses

    def operations(self) -> dict[type[Operation], Apply]:
        """Return the method of each operation."""
        return {
            LoadReserve: self._load_reserve,
            LoadName: self._load_name,
            LoadSubmit: self._load_submit,
            LoadCancel: self._load_cancel,
            BackupSubmit: self._backup,
            Hold: self._hold,
            Publish: self._publish,
            Post: self._post,
            CancelHold: self._cancel_hold,
        }

    def _load_reserve(
        self, program: int, operation: LoadReserve, _result: Done, told: Told
    ) -> None:
        self.judge.room(operation.units, "granted")
        self.judge.make_room(told)
        chosen = {
            band: units.tolist()
            for band, units in self.engine.uses.copies.loads[operation.load].reserved.items()
        }
        counts = tuple([len(chosen.get(band, ())) for band in range(len(operation.units))])
        require(
            counts == operation.units,
            "reservations",
            f"load {operation.load} asked {operation.units} units and got {counts}",
        )
        self.uses.reserve(operation.load, operation.value_id, chosen)

    def _load_name(self, program: int, operation: LoadName, _result: Done, told: Told) -> None:
        self.uses.name(operation.load, operation.band, int64s(operation.virtual), told)
        told.named.clear()
        self.judge.nothing_else(told)

    def _load_submit(self, program: int, operation: LoadSubmit, _result: Done, told: Told) -> None:
        self.uses.submit(operation.load, told)
        told.copies.clear()
        self.judge.nothing_else(told)

    def _load_cancel(self, program: int, operation: LoadCancel, result: Freed, told: Told) -> None:
        self.judge.nothing_else(told, unnames=True)
        self.judge.counted(result, self.uses.cancel_load(operation.load, told))

    def _backup(self, program: int, operation: BackupSubmit, _result: Done, told: Told) -> None:
        self.judge.wait(told)
        self.uses.back_up(operation.backup, _per_band(operation.virtual), told)

    def _hold(self, program: int, operation: Hold, _result: Done, told: Told) -> None:
        self.judge.nothing_else(told)
        self.uses.hold(operation.transfer, _per_band(operation.virtual))

    def _publish(self, program: int, operation: Publish, result: Resolved, told: Told) -> None:
        self.judge.wait(told)
        self.uses.publish(operation.transfer, result, told)

    def _post(self, program: int, operation: Post, result: Resolved, told: Told) -> None:
        self.judge.nothing_else(told)
        self.uses.post(operation.transfer, _per_band(operation.virtual), result, told)

    def _cancel_hold(self, program: int, operation: CancelHold, _result: Done, told: Told) -> None:
        self.judge.nothing_else(told)
        self.uses.cancel_hold(operation.transfer)


def _per_band(encoded: tuple[bytes, ...]) -> list[list[int]]:
    return [int64s(part) for part in encoded]
