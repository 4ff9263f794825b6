"""Who has to be waited before a unit's bytes are written or read: the one rule, as data.

A use that is not over is a hazard to the next writer of the same bytes. `CLEARANCE` says for each
next writer (`Consumer`) and each hazard what is done about it; `READ_CLEARANCE` says the same for
readers and the writers they meet. Nothing else in kvd decides whom to wait for; code that needs to
know takes the table as an argument, so that a test can change one cell and watch what breaks.

A is the allocator stream, F the stream of forwards, LD and BK those of loads and backups. What A
has waited is cleared for every later forward as well, because F waits A at each launch. Peers obey
no stream: what has to happen before they act, the host must have seen.

A band that extends over bytes another band left has no row of its own: extending writes nothing.
The row of whoever writes there next is asked, against the fences those bytes carry.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class Consumer(StrEnum):
    """The next writer of a unit."""

    FORWARD_WRITE = "c1"
    """A forward, of a unit that nothing zeroes before: a state slot."""
    ZEROING = "c2"
    """Zeroing on hand-out, on A, ahead of the forward that fills the page."""
    MOVE_DESTINATION = "c3"
    """The copy of a move, on A."""
    HOST_LOAD = "c4"
    """A copy from the host tier, on LD."""
    PEER_WRITE = "c5"
    """A peer that receives the unit's place: its writing begins when the place is published."""
    STATE_WRITE = "c6"
    """A forward's clearing of a state slot, or its copying of a checkpoint into it, on F."""


class Hazard(StrEnum):
    """What may still touch the bytes when the next writer comes."""

    VACATED_READ = "h1"
    """A step that is not retired may read what lay here before it moved away."""
    PENDING = "h2"
    """The unit was freed under a step that is not processed, which may read and write it."""
    LIVE_WRITE = "h3"
    """A step that is not retired writes this unit, which is live."""
    COPY_READ = "h4"
    """A backup reads it."""
    COPY_WRITE = "h5"
    """A load writes it."""
    NETWORK_SEND = "h6"
    """A peer may read it."""
    NETWORK_RECEIVE = "h7"
    """A peer may write it."""
    ALLOCATOR_WORK = "h8"
    """A move or a zeroing that A has yet to run."""
    RESERVATION = "load reservation"
    """A load was promised this very place and holds its number."""
    HOLD = "receive hold"
    """A receive will publish this place."""


class Reader(StrEnum):
    """Who is about to read a unit."""

    MOVE_SOURCE = "r1"
    """The copy of a move, on A."""
    BACKUP = "r2"
    """A copy to the host tier, on BK."""
    NETWORK_SEND = "r3"
    """A peer that was told where to read."""
    FORWARD_READ = "r4"
    """A forward, on F."""
    ID_READ = "r5"
    """Whoever takes down where units lie, to publish it or to queue a copy."""


class Writer(StrEnum):
    """Who may still be writing the unit that a reader wants."""

    FORWARD_WRITE = "forward"
    """A step that is not retired, with this unit in its write set."""
    UNKNOWN_WRITE = "forward, unknown"
    """A step that is not retired and whose write set nobody knows: any live unit."""
    COPY_WRITE = "load"
    NETWORK_RECEIVE = "receive"
    ALLOCATOR_WORK = "allocator"
    RESERVATION = "load reservation"
    HOLD = "receive hold"


class Cell(StrEnum):
    """What is done about a hazard before its consumer goes ahead."""

    NOTHING = "0"
    """Order holds already."""
    WAIT = "A"
    """A waits the hazard's signal first; the host does not stop."""
    WAIT_AND_FOLLOW = "A*"
    """As WAIT, and the consumer, which does not run on A or behind it, waits A's position."""
    FOLLOW = "F"
    """The reader's stream waits the tail of the stream the writer runs on; A waits nothing."""
    SETTLE = "S"
    """Not to be chosen before its step was processed, or A waited that step's whole batch."""
    NEVER_OPEN = "N"
    """Not to be chosen while open; where no layout does without it, the host waits for its end."""
    IMPOSSIBLE = "X"
    """Choosing it means that the books are wrong."""


class Rule(NamedTuple):
    """One cell of a table and why it says so."""

    cell: Cell
    reason: str


Clearance: TypeAlias = Mapping[tuple[Consumer, Hazard], Rule]
ReadClearance: TypeAlias = Mapping[tuple[Reader, Writer], Rule]

_C, _H, _R, _W, _ = Consumer, Hazard, Reader, Writer, Cell

CLEARANCE: dict[tuple[Consumer, Hazard], Rule] = {
    # c1: a forward, without zeroing before it
    (_C.FORWARD_WRITE, _H.VACATED_READ): Rule(
        _.NOTHING, "only steps launched before the move read the old bytes, and F runs in order"
    ),
    (_C.FORWARD_WRITE, _H.PENDING): Rule(
        _.SETTLE, "the step the page was freed under may write its next token into it"
    ),
    (_C.FORWARD_WRITE, _H.LIVE_WRITE): Rule(
        _.IMPOSSIBLE, "a unit handed out now is nobody's; its owner goes on without taking it"
    ),
    (_C.FORWARD_WRITE, _H.COPY_READ): Rule(
        _.WAIT, "the backup would ship the new bytes under the old name"
    ),
    (_C.FORWARD_WRITE, _H.COPY_WRITE): Rule(
        _.WAIT, "a load whose rows were given up must not be the last to write"
    ),
    (_C.FORWARD_WRITE, _H.NETWORK_SEND): Rule(
        _.NEVER_OPEN, "no stream can wait for a peer that still reads"
    ),
    (_C.FORWARD_WRITE, _H.NETWORK_RECEIVE): Rule(
        _.IMPOSSIBLE, "what a peer may write is live or vacated until its end is proved"
    ),
    (_C.FORWARD_WRITE, _H.ALLOCATOR_WORK): Rule(_.NOTHING, "F waits A at every launch"),
    (_C.FORWARD_WRITE, _H.RESERVATION): Rule(
        _.IMPOSSIBLE, "a queued load will write here by its number"
    ),
    (_C.FORWARD_WRITE, _H.HOLD): Rule(_.IMPOSSIBLE, "the place belongs to a receive"),
    # c2: zeroing on hand-out
    (_C.ZEROING, _H.VACATED_READ): Rule(
        _.WAIT, "A is not behind the forward that may read the old bytes"
    ),
    (_C.ZEROING, _H.PENDING): Rule(
        _.SETTLE, "the running step would write over the zeros, or read them"
    ),
    (_C.ZEROING, _H.LIVE_WRITE): Rule(_.IMPOSSIBLE, "it would erase what its owner computes"),
    (_C.ZEROING, _H.COPY_READ): Rule(_.WAIT, "the backup would ship zeros under the old name"),
    (_C.ZEROING, _H.COPY_WRITE): Rule(
        _.WAIT, "a given-up load that ends later leaves bytes nobody zeroed"
    ),
    (_C.ZEROING, _H.NETWORK_SEND): Rule(
        _.NEVER_OPEN, "the peer would receive zeros, and A cannot wait for it"
    ),
    (_C.ZEROING, _H.NETWORK_RECEIVE): Rule(
        _.IMPOSSIBLE, "zeros would wipe what the peer delivered, or be overwritten by it"
    ),
    (_C.ZEROING, _H.ALLOCATOR_WORK): Rule(_.NOTHING, "both run on A"),
    (_C.ZEROING, _H.RESERVATION): Rule(_.IMPOSSIBLE, "a queued load will write here by its number"),
    (_C.ZEROING, _H.HOLD): Rule(_.IMPOSSIBLE, "the place belongs to a receive"),
    # c3: destination of a move
    (_C.MOVE_DESTINATION, _H.VACATED_READ): Rule(
        _.WAIT, "A is not behind the forward that may read the old bytes"
    ),
    (_C.MOVE_DESTINATION, _H.PENDING): Rule(
        _.SETTLE, "the running step would write into the unit that moved in"
    ),
    (_C.MOVE_DESTINATION, _H.LIVE_WRITE): Rule(_.IMPOSSIBLE, "a live unit is never a destination"),
    (_C.MOVE_DESTINATION, _H.COPY_READ): Rule(
        _.WAIT, "the backup would ship the moved unit under another's name"
    ),
    (_C.MOVE_DESTINATION, _H.COPY_WRITE): Rule(
        _.WAIT, "a given-up load would overwrite the unit that moved in"
    ),
    (_C.MOVE_DESTINATION, _H.NETWORK_SEND): Rule(
        _.NEVER_OPEN, "the peer would receive another request's bytes"
    ),
    (_C.MOVE_DESTINATION, _H.NETWORK_RECEIVE): Rule(
        _.IMPOSSIBLE, "the peer would overwrite the unit that moved in"
    ),
    (_C.MOVE_DESTINATION, _H.ALLOCATOR_WORK): Rule(
        _.NOTHING, "both run on A, and a batch's sources and destinations are disjoint"
    ),
    (_C.MOVE_DESTINATION, _H.RESERVATION): Rule(
        _.IMPOSSIBLE, "a queued load will write here by its number"
    ),
    (_C.MOVE_DESTINATION, _H.HOLD): Rule(_.IMPOSSIBLE, "the place belongs to a receive"),
    # c4: a load from the host tier
    (_C.HOST_LOAD, _H.VACATED_READ): Rule(
        _.WAIT_AND_FOLLOW, "LD is behind neither A nor, but for its own wait at submission, F"
    ),
    (_C.HOST_LOAD, _H.PENDING): Rule(_.SETTLE, "the running step would write into what was loaded"),
    (_C.HOST_LOAD, _H.LIVE_WRITE): Rule(
        _.IMPOSSIBLE, "a load fills units that were taken for it and that nothing writes yet"
    ),
    (_C.HOST_LOAD, _H.COPY_READ): Rule(
        _.WAIT_AND_FOLLOW, "BK may still read the old bytes, and LD is not behind it"
    ),
    (_C.HOST_LOAD, _H.COPY_WRITE): Rule(
        _.WAIT_AND_FOLLOW, "two loads may run on streams of their own; the newer must end last"
    ),
    (_C.HOST_LOAD, _H.NETWORK_SEND): Rule(
        _.NEVER_OPEN, "no stream can wait for a peer that still reads"
    ),
    (_C.HOST_LOAD, _H.NETWORK_RECEIVE): Rule(_.IMPOSSIBLE, "two writers outside the books' order"),
    (_C.HOST_LOAD, _H.ALLOCATOR_WORK): Rule(
        _.WAIT_AND_FOLLOW, "the zeroing of a handed-out page must not land on what was loaded"
    ),
    (_C.HOST_LOAD, _H.RESERVATION): Rule(
        _.IMPOSSIBLE, "two loads of one place; a load's own reservation is named and left out"
    ),
    (_C.HOST_LOAD, _H.HOLD): Rule(_.IMPOSSIBLE, "the place belongs to a receive"),
    # c5: a peer, from the moment it is told the place
    (_C.PEER_WRITE, _H.VACATED_READ): Rule(
        _.WAIT_AND_FOLLOW, "the peer may write at once: the host must see that A passed the wait"
    ),
    (_C.PEER_WRITE, _H.PENDING): Rule(
        _.SETTLE, "the running step would write into what was received"
    ),
    (_C.PEER_WRITE, _H.LIVE_WRITE): Rule(
        _.IMPOSSIBLE, "nobody writes a place while it waits for its peer"
    ),
    (_C.PEER_WRITE, _H.COPY_READ): Rule(
        _.WAIT_AND_FOLLOW, "the backup would ship received bytes under the old name"
    ),
    (_C.PEER_WRITE, _H.COPY_WRITE): Rule(
        _.WAIT_AND_FOLLOW, "a given-up load would overwrite what was received"
    ),
    (_C.PEER_WRITE, _H.NETWORK_SEND): Rule(
        _.NEVER_OPEN, "one peer's bytes would reach another; the host waits for the send"
    ),
    (_C.PEER_WRITE, _H.NETWORK_RECEIVE): Rule(
        _.NEVER_OPEN, "two peers write one place; the host must see the older transfer end"
    ),
    (_C.PEER_WRITE, _H.ALLOCATOR_WORK): Rule(
        _.WAIT_AND_FOLLOW, "told before A zeroed or moved, the peer's bytes are wiped"
    ),
    (_C.PEER_WRITE, _H.RESERVATION): Rule(
        _.IMPOSSIBLE, "a queued load will write here by its number"
    ),
    (_C.PEER_WRITE, _H.HOLD): Rule(
        _.IMPOSSIBLE, "two receives of one place; a receive's own hold is named and left out"
    ),
    # c6: clearing a state slot or copying a checkpoint into it, on F
    (_C.STATE_WRITE, _H.VACATED_READ): Rule(
        _.NOTHING, "only steps launched before the move read the old bytes, and F runs in order"
    ),
    (_C.STATE_WRITE, _H.PENDING): Rule(
        _.SETTLE, "a side stream of the running step may yet commit its state to the slot"
    ),
    (_C.STATE_WRITE, _H.LIVE_WRITE): Rule(_.IMPOSSIBLE, "it would erase a running request's state"),
    (_C.STATE_WRITE, _H.COPY_READ): Rule(
        _.WAIT, "the backup would ship the new state under the old name"
    ),
    (_C.STATE_WRITE, _H.COPY_WRITE): Rule(
        _.WAIT, "a given-up load would overwrite the cleared slot"
    ),
    (_C.STATE_WRITE, _H.NETWORK_SEND): Rule(
        _.NEVER_OPEN, "no stream can wait for a peer that still reads"
    ),
    (_C.STATE_WRITE, _H.NETWORK_RECEIVE): Rule(
        _.IMPOSSIBLE, "what a peer may write is live or vacated until its end is proved"
    ),
    (_C.STATE_WRITE, _H.ALLOCATOR_WORK): Rule(_.NOTHING, "F waits A at every launch"),
    (_C.STATE_WRITE, _H.RESERVATION): Rule(
        _.IMPOSSIBLE, "a queued load will write here by its number"
    ),
    (_C.STATE_WRITE, _H.HOLD): Rule(_.IMPOSSIBLE, "the place belongs to a receive"),
}
"""Whom the next writer of a unit waits for."""

READ_CLEARANCE: dict[tuple[Reader, Writer], Rule] = {
    # r1: source of a move; a move that is not urgent leaves such units where they are
    (_R.MOVE_SOURCE, _W.FORWARD_WRITE): Rule(
        _.WAIT, "the copy would miss what the step writes later; the newest such step covers all"
    ),
    (_R.MOVE_SOURCE, _W.UNKNOWN_WRITE): Rule(_.WAIT, "a write set nobody knows may hold this unit"),
    (_R.MOVE_SOURCE, _W.COPY_WRITE): Rule(_.WAIT, "the copy would miss what the load delivers"),
    (_R.MOVE_SOURCE, _W.NETWORK_RECEIVE): Rule(
        _.NEVER_OPEN, "the peer knows this place and goes on writing to it after the move"
    ),
    (_R.MOVE_SOURCE, _W.ALLOCATOR_WORK): Rule(_.NOTHING, "both run on A"),
    (_R.MOVE_SOURCE, _W.RESERVATION): Rule(
        _.IMPOSSIBLE, "the queued load keeps the old number and would write behind the move"
    ),
    (_R.MOVE_SOURCE, _W.HOLD): Rule(
        _.NOTHING, "nothing was delivered yet, and the place is read anew when it is published"
    ),
    # r2: backup
    (_R.BACKUP, _W.FORWARD_WRITE): Rule(_.FOLLOW, "BK waits the tail of F at submission"),
    (_R.BACKUP, _W.UNKNOWN_WRITE): Rule(_.FOLLOW, "BK waits the tail of F at submission"),
    (_R.BACKUP, _W.COPY_WRITE): Rule(
        _.WAIT_AND_FOLLOW, "BK is behind A, and A behind the load that fills the unit"
    ),
    (_R.BACKUP, _W.NETWORK_RECEIVE): Rule(
        _.NEVER_OPEN, "a page is worth keeping only once the host saw all of it arrive"
    ),
    (_R.BACKUP, _W.ALLOCATOR_WORK): Rule(_.FOLLOW, "BK waits A's position at submission"),
    (_R.BACKUP, _W.RESERVATION): Rule(_.IMPOSSIBLE, "there is nothing in it to keep"),
    (_R.BACKUP, _W.HOLD): Rule(_.IMPOSSIBLE, "there is nothing in it to keep"),
    # r3: network send
    (_R.NETWORK_SEND, _W.FORWARD_WRITE): Rule(
        _.NEVER_OPEN, "a peer obeys no stream: the step is processed before the place is told"
    ),
    (_R.NETWORK_SEND, _W.UNKNOWN_WRITE): Rule(
        _.NEVER_OPEN, "a peer obeys no stream: the step is processed before the place is told"
    ),
    (_R.NETWORK_SEND, _W.COPY_WRITE): Rule(
        _.NEVER_OPEN, "the load is acknowledged before the place is told"
    ),
    (_R.NETWORK_SEND, _W.NETWORK_RECEIVE): Rule(
        _.IMPOSSIBLE, "what is being received is not sent on"
    ),
    (_R.NETWORK_SEND, _W.ALLOCATOR_WORK): Rule(
        _.FOLLOW, "the place is told once the host saw A reach the work that put the bytes there"
    ),
    (_R.NETWORK_SEND, _W.RESERVATION): Rule(_.IMPOSSIBLE, "there is nothing in it to send"),
    (_R.NETWORK_SEND, _W.HOLD): Rule(_.IMPOSSIBLE, "there is nothing in it to send"),
    # r4: forward
    (_R.FORWARD_READ, _W.FORWARD_WRITE): Rule(_.NOTHING, "F runs in order"),
    (_R.FORWARD_READ, _W.UNKNOWN_WRITE): Rule(_.NOTHING, "F runs in order"),
    (_R.FORWARD_READ, _W.COPY_WRITE): Rule(
        _.FOLLOW, "F waits the load's event of a layer ahead of that layer"
    ),
    (_R.FORWARD_READ, _W.NETWORK_RECEIVE): Rule(
        _.NEVER_OPEN, "a request runs only once the host saw all of it arrive"
    ),
    (_R.FORWARD_READ, _W.ALLOCATOR_WORK): Rule(_.FOLLOW, "F waits A at every launch"),
    (_R.FORWARD_READ, _W.RESERVATION): Rule(
        _.IMPOSSIBLE, "a forward launched before the load is submitted would read nothing"
    ),
    (_R.FORWARD_READ, _W.HOLD): Rule(_.IMPOSSIBLE, "there is nothing in it to read"),
    # r5: taking down where units lie
    (_R.ID_READ, _W.FORWARD_WRITE): Rule(_.NOTHING, "forwards write bytes, not places"),
    (_R.ID_READ, _W.UNKNOWN_WRITE): Rule(_.NOTHING, "forwards write bytes, not places"),
    (_R.ID_READ, _W.COPY_WRITE): Rule(_.NOTHING, "loads write bytes, not places"),
    (_R.ID_READ, _W.NETWORK_RECEIVE): Rule(_.NOTHING, "peers write bytes, not places"),
    (_R.ID_READ, _W.ALLOCATOR_WORK): Rule(
        _.FOLLOW, "whoever acts on the place acts behind A's work on it"
    ),
    (_R.ID_READ, _W.RESERVATION): Rule(_.NOTHING, "the reserved place is fixed"),
    (_R.ID_READ, _W.HOLD): Rule(_.NOTHING, "held places are taken down when they are published"),
}
"""Whom a reader of a unit waits for."""

WAITS = (Cell.WAIT, Cell.WAIT_AND_FOLLOW)
"""Cells that make A wait the hazard's signal."""

CLOSED = (Cell.SETTLE, Cell.NEVER_OPEN, Cell.IMPOSSIBLE)
"""Cells that keep a unit from being chosen at all."""


def consumer_follows(consumer: Consumer, table: Clearance = CLEARANCE) -> bool:
    """Return whether the consumer has to be placed behind A before it writes.

    What it may have to be behind includes work that leaves no use behind, so this depends on the
    consumer alone.
    """
    return any(table[consumer, hazard].cell is Cell.WAIT_AND_FOLLOW for hazard in Hazard)


def can_choose(consumer: Consumer, hazard: Hazard, table: Clearance = CLEARANCE) -> bool:
    """Return whether the consumer may choose a unit under an open hazard at all."""
    return table[consumer, hazard].cell not in CLOSED
