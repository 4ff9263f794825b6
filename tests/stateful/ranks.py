"""Ranks without processes: stages to decide on, and tables that follow what was decided."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage, build_group
from kvd.engine.incarnation import Incarnation
from kvd_proto.codec import decode_reply, digest_of, encode, join_batch
from kvd_proto.memory import (
    AttentionPart,
    DeclaredLayers,
    DType,
    LayerDecl,
    SizingInputs,
    StatePart,
    StateTensor,
    StoragePlan,
)
from kvd_proto.operations import BatchEnd, Operation
from kvd_proto.outcomes import (
    NO_COLUMN,
    ClearSlots,
    Copy,
    CopyStream,
    Entry,
    Move,
    Outcome,
    ResetRows,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
    ZeroSink,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONTEXT_TOKENS = 100
PAGE_TOKENS = 4
CHUNK_TOKENS = 16


def _attention(window_tokens: int | None = None) -> LayerDecl:
    return LayerDecl(
        parts=(
            AttentionPart(
                kv_head_count=1,
                key_element_count=16,
                value_element_count=16,
                window_tokens=window_tokens,
            ),
        )
    )


@cache
def stage(*, rows: int = 6, spare_bytes: int = 1 << 16, virtual_pages: int = 0) -> StageStorage:
    """Return a stage with a state band, two windows and an owner, at its floor plus some bytes."""
    state = StatePart(recurrent=StateTensor(shape=(4, 16), dtype=DType.FLOAT32))
    layers = DeclaredLayers(
        layers=(_attention(), _attention(8), _attention(20), LayerDecl(parts=(state,))),
        context_tokens=CONTEXT_TOKENS,
    )
    inputs = SizingInputs(
        budget_bytes=1 << 30,
        page_tokens=PAGE_TOKENS,
        running_requests_count=rows,
        chunk_tokens=CHUNK_TOKENS,
        cached_slots=0,
    )
    floor_bytes = build_group(layers, inputs=inputs).budget_floor_bytes
    budget_bytes = floor_bytes + spare_bytes
    group = build_group(
        layers,
        inputs=SizingInputs(
            budget_bytes=budget_bytes,
            page_tokens=PAGE_TOKENS,
            running_requests_count=rows,
            chunk_tokens=CHUNK_TOKENS,
            cached_slots=0,
        ),
    )
    return group.stages[0]


def incarnation(
    *, ranks: int = 1, storage: StageStorage | None = None, ring: int = 1000, lag: int = 1000
) -> Incarnation:
    """Return a fresh incarnation with strict checks."""
    return Incarnation(
        storage or stage(),
        number=1,
        ranks=tuple(range(ranks)),
        level=CheckLevel.STRICT,
        ring_entries_max=ring,
        lag_entries_max=lag,
    )


def int64s(values: Sequence[int]) -> bytes:
    """Return request ids as they travel."""
    return np.array(values, dtype="<i8").tobytes()


def int32s(values: Sequence[int]) -> bytes:
    """Return token counts as they travel."""
    return np.array(values, dtype="<i4").tobytes()


def body_of(operations: Sequence[Operation]) -> bytes:
    """Return a batch of these operations, with its end."""
    return join_batch([encode(operation) for operation in (*operations, BatchEnd())])


def columns_of(outcome: Outcome) -> list[list[int]]:
    """Return an outcome's columns."""
    values = np.frombuffer(outcome.columns, dtype="<i4")
    ends = np.cumsum(np.array(outcome.lengths, dtype=np.int64)).tolist()
    assert (ends[-1] if ends else 0) == values.size
    starts = [0, *ends][: len(ends)]
    return [values[start:end].tolist() for start, end in zip(starts, ends, strict=True)]


class Tables:
    """The device tables of one rank, written by effects and by nothing else."""

    def __init__(self, plan: StoragePlan) -> None:
        maps = {item.band: item.entry_count for item in plan.region.band_maps}
        self.maps = [np.zeros(maps[band.name], dtype=np.int32) for band in plan.bands]
        self.written = [
            np.full(band.unit_index_end_count, -1, dtype=np.int32) for band in plan.bands
        ]
        """Per unit: position at which what it holds was zeroed, loaded or asked to be cleared."""
        self.rows = np.zeros((plan.row_count, plan.row_pages), dtype=np.int32)
        self.slots = np.zeros(plan.row_count, dtype=np.int32)
        self.reset_rows: list[int] = []

    def apply(self, position: int, outcome: Outcome) -> None:
        """Execute the effects of one entry."""
        columns = columns_of(outcome)
        for effect in (effect for segment in outcome.segments for effect in segment):
            if isinstance(effect, Zero):
                self.written[effect.band][columns[effect.units]] = position
            elif isinstance(effect, WriteMap):
                named = effect.physical != NO_COLUMN
                physical = columns[effect.physical] if named else 0
                self.maps[effect.band][columns[effect.virtual]] = physical
            elif isinstance(effect, WriteRows):
                places = columns[effect.places]
                self.rows[columns[effect.rows], places] = columns[effect.virtual]
            elif isinstance(effect, WriteSlots):
                self.slots[columns[effect.rows]] = columns[effect.virtual]
            elif isinstance(effect, ResetRows):
                self.reset_rows += columns[effect.rows]
            elif isinstance(effect, Move):
                written = self.written[effect.band]
                written[columns[effect.destinations]] = written[columns[effect.sources]]
            elif isinstance(effect, Copy):
                if effect.stream is CopyStream.LOAD:
                    self.written[effect.band][columns[effect.units]] = position
            elif not isinstance(effect, Wait | ZeroSink):
                assert isinstance(effect, ClearSlots)
                self.written[0][columns[effect.units]] = position

    def picture(self) -> tuple[bytes, ...]:
        """Return all bytes of the tables."""
        arrays: list[NDArray[np.int32]] = [*self.maps, *self.written, self.rows, self.slots]
        return tuple(array.tobytes() for array in arrays)


class Rank:
    """One rank's end of an incarnation: sends, compares, applies."""

    def __init__(self, world: Incarnation, rank: int, *, storage: StageStorage) -> None:
        self.world = world
        self.rank = rank
        self.tables = Tables(storage.storage)
        self.position = 0
        self.entries: list[Entry] = []
        self.replies: list[bytes] = []

    def send(self, *operations: Operation, index: int | None = None) -> list[Entry]:
        """Send a batch, apply the reply, and return the entries of this batch."""
        first = self._index if index is None else index
        body = body_of(operations)
        self.world.confirm(self.rank, self.position)
        next_index, reply = self.world.batch(rank=self.rank, program=0, index=first, body=body)
        assert next_index == first + len(operations) + 1
        encoded = [encode(operation) for operation in (*operations, BatchEnd())]
        self._apply(reply, expected=dict(enumerate(map(digest_of, encoded), first)))
        self._index = next_index
        return [entry for entry in self.entries if entry.program == 0 and entry.index >= first]

    def follow(self) -> None:
        """Apply what the log holds beyond this rank's cursor."""
        self.world.confirm(self.rank, self.position)
        reply = self.world.follow(self.rank)
        if reply is not None:
            self._apply(reply, expected={})

    def _apply(self, reply: bytes, *, expected: dict[int, int]) -> None:
        decoded = decode_reply(reply)
        assert decoded.position == self.position + 1
        for entry in decoded.entries:
            if entry.program == 0 and entry.index in expected:
                assert entry.digest == expected[entry.index]
        self.replies.append(reply)
        for entry in decoded.entries:
            self.position += 1
            self.tables.apply(self.position, entry.outcome)
            self.entries.append(entry)

    _index = 0


def lone(storage: StageStorage | None = None) -> Rank:
    """Return the only rank of a fresh incarnation."""
    chosen = storage or stage()
    return Rank(incarnation(storage=chosen), 0, storage=chosen)
