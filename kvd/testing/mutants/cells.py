"""Cells of the clearance tables that ask for nothing: one fault for each that code asks for.

Where another rule keeps the same two accesses apart the cell is left out together with it, because
nothing hangs on either alone. Rows and columns that no code asks for are in `equivalents`.
"""

from typing import Final

from kvd.alloc.clearance import Consumer, Hazard, Reader, Writer
from kvd.testing.mutants.fault import Edit, Fault, Uncleared, Unread

_C, _H, _R, _W = Consumer, Hazard, Reader, Writer

NOTHING_VACATED: Final = Edit(
    "kvd.alloc.band_units:BandUnits._let_go", "if self.usage.is_clear:", "if True:"
)
NOTHING_BLOCKED: Final = Edit(
    "kvd.alloc.byte_fences:ByteFences.blocked", "return _intervals(parts)", "return ()"
)
NOTHING_PUMPED: Final = Edit(
    "kvd.alloc.transfers:Transfers.publish",
    "others.update(dict.fromkeys(it.number for it in band.usage.transfers(places)))",
    "pass",
)
RECEIVES_NOT_FIXED: Final = Edit(
    "kvd.price.need:_keep",
    "hard, soft = band.hard_fixed, band.soft_fixed",
    "hard, soft = band.hard_fixed, None",
)
LOADS_BESIDE_FORWARDS: Final = Edit(
    "kvd_client.device.apply:Applier._enqueue",
    "if self._forward_end is not None and not self._forward_end.reached:",
    "if piece.stream.value != 'load' and self._forward_end is not None:",
)
_VACATED: Final = "what a transfer may touch is no hole"
_BLOCKED: Final = "bytes that a transfer may touch are not grown into"


def _of_writers(consumer: Consumer, hazard: Hazard, *beside: Edit, why: str = "") -> Fault:
    return Fault(
        name=f"{consumer.value}-{hazard.value}",
        rule=f"{hazard.name} before {consumer.name}",
        changes=(Uncleared(consumer, hazard), *beside),
        beside=why,
    )


def _of_readers(reader: Reader, writer: Writer, *beside: Edit, why: str = "") -> Fault:
    return Fault(
        name=f"{reader.value}-{writer.value.replace(', ', '-')}",
        rule=f"{writer.name} before {reader.name}",
        changes=(Unread(reader, writer), *beside),
        beside=why,
    )


CELL_FAULTS: Final[tuple[Fault, ...]] = (
    _of_writers(_C.ZEROING, _H.VACATED_READ),
    _of_writers(_C.ZEROING, _H.COPY_READ),
    _of_writers(_C.ZEROING, _H.COPY_WRITE),
    _of_writers(_C.ZEROING, _H.NETWORK_SEND, NOTHING_VACATED, why=_VACATED),
    Fault(
        name="c2-h6-left",
        rule="NETWORK_SEND before ZEROING, on bytes that left their band",
        changes=(Uncleared(_C.ZEROING, _H.NETWORK_SEND), NOTHING_BLOCKED),
        beside=_BLOCKED,
    ),
    _of_writers(_C.MOVE_DESTINATION, _H.VACATED_READ),
    _of_writers(_C.MOVE_DESTINATION, _H.COPY_READ),
    _of_writers(_C.MOVE_DESTINATION, _H.COPY_WRITE),
    _of_writers(_C.MOVE_DESTINATION, _H.NETWORK_SEND, NOTHING_VACATED, why=_VACATED),
    _of_writers(
        _C.HOST_LOAD, _H.VACATED_READ, LOADS_BESIDE_FORWARDS, why="a load waits the tail of F"
    ),
    _of_writers(_C.HOST_LOAD, _H.COPY_READ),
    _of_writers(_C.HOST_LOAD, _H.COPY_WRITE),
    _of_writers(_C.HOST_LOAD, _H.NETWORK_SEND, NOTHING_VACATED, why=_VACATED),
    _of_writers(_C.PEER_WRITE, _H.COPY_READ),
    _of_writers(_C.PEER_WRITE, _H.COPY_WRITE),
    _of_writers(
        _C.PEER_WRITE,
        _H.NETWORK_SEND,
        NOTHING_PUMPED,
        why="a publication waits for the transfers that touch its place",
    ),
    _of_readers(_R.MOVE_SOURCE, _W.FORWARD_WRITE),
    _of_readers(_R.MOVE_SOURCE, _W.UNKNOWN_WRITE),
    _of_readers(_R.MOVE_SOURCE, _W.COPY_WRITE),
    _of_readers(
        _R.MOVE_SOURCE,
        _W.NETWORK_RECEIVE,
        RECEIVES_NOT_FIXED,
        why="what a peer writes is priced as fixed",
    ),
    _of_readers(_R.BACKUP, _W.COPY_WRITE),
    _of_readers(_R.BACKUP, _W.NETWORK_RECEIVE),
    _of_readers(_R.NETWORK_SEND, _W.FORWARD_WRITE),
    _of_readers(_R.NETWORK_SEND, _W.UNKNOWN_WRITE),
    _of_readers(_R.NETWORK_SEND, _W.COPY_WRITE),
)
