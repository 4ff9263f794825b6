"""What the harness checks, by name, and how it says that something is wrong.

The names follow the fifteen checks of semantics 11.4; some are split where that tells more.
"""

from enum import StrEnum

from kvd.errors import DivergenceError, InvariantError, RaceError, StressFailure
from kvd_client.errors import KvdClientError, TablesError


class CheckName(StrEnum):
    """One check of the harness."""

    PAYLOAD = "stress.payload"
    """Every unit that a forward reads, and at rest every live unit, holds its owner's last bytes;
    the sink holds zero."""
    RACE = "stress.race"
    """Of two accesses to the same bytes, one of them a write, one is ordered behind the other."""
    LAUNCH_READS = "stress.launch_reads"
    """A step sees the bytes as of its launch, and none that a later step wrote."""
    SHIPPED = "stress.shipped"
    """A backup and a send ship what their owner had when they were submitted."""
    DIVERGENCE = "stress.divergence"
    """Ranks hold the same, and an engine that decides the same operations again decides alike."""
    DISJOINT = "stress.disjoint"
    """Live units of all bands share no byte, lie between sink and arena end, and are counted."""
    MAPS = "stress.maps"
    """Maps are inverse, no unit is bound twice, windows are bound only where the owner is, and a
    rank's tables say at every launch what the log says."""
    LEDGER = "stress.ledger"
    """The ledger's records are the model's open accesses, no more, no fewer."""
    ANSWERS = "stress.answers"
    """A yes is a take that succeeds; a no is one because no layout serves it."""
    PURE = "stress.pure"
    """A refusal, and wrong use, leave all state bit-identical."""
    SNAPSHOT = "stress.snapshot"
    """What is answered from memory is what a recomputation says, and the engine's own checks."""
    GROWTH = "stress.growth"
    """A float that grows downwards has more room there than above."""
    STEPS = "stress.steps"
    """Steps are launched, processed and retired as operations and waits say."""
    CONSERVATION = "stress.conservation"
    """Every unit of a span is in one class, and counters count it once."""
    PENDING = "stress.pending"
    """What was freed comes back once, and not before its step or its transfer is over."""
    CLEARANCE = "stress.clearance"
    """Nothing is written, read or told a peer without the waits that the clearance tables ask."""
    HOLDINGS = "stress.holdings"
    """Requests and values hold what operations gave them, and somebody holds whatever is bound."""
    RESERVATIONS = "stress.reservations"
    """Loads, backups and transfers are as operations left them, and each ends exactly once."""
    PROMISES = "stress.promises"
    """What is held back is what requests may still take."""
    IDS = "stress.ids"
    """Every name is free or bound, and every row free or somebody's."""
    OUTCOME = "stress.outcome"
    """Columns and effects of an outcome say what the operation did, and nothing else."""
    HOST_WAIT = "stress.host_wait"
    """A decision neither reads a device nor waits for one."""
    PINNED = "stress.pinned"
    """What a peer was told, and what a load has reserved, stays where it is."""
    ZEROING = "stress.zeroing"
    """A page handed out reads zero until its owner writes it, and nothing is zeroed once its place
    is published."""
    DRAIN = "stress.drain"
    """Nothing pends without a recorded step, and everything is free once everybody has gone."""
    LIVENESS = "stress.liveness"
    """Once everything is over, any request that fits an empty arena is admitted and served."""
    CHOICE = "stress.choice"
    """The lowest hole that needs no wait, and the name that was free longest, are taken first; a
    take for which holes suffice waits for nothing."""
    GATE = "stress.gate"
    """The daemon's own entries stand behind the notices of launches."""
    RESOLVED = "stress.resolved"
    """Whoever is told a place is told whether anything moved."""
    SEALED = "stress.sealed"
    """Exactly those values survive whose bytes are what they should be on every rank."""
    EFFECTS = "stress.effects"
    """Waits stand in front of what they guard, and every segment of an outcome can be redone."""
    CLIENT = "stress.client"
    """A rank carries out what it is told: no error of a client that keeps to the contract."""
    ENDS = "stress.ends"
    """Every step comes to its end: nothing goes round in circles."""
    ENGINE = "stress.engine"
    """The engine decides whatever it is asked: it raises nothing but what its callers expect."""


def failure_of(error: Exception, *, in_engine: bool) -> StressFailure:
    """Return what an exception of the code under test means.

    An invariant of kvd's own that does not hold keeps its name.
    """
    if isinstance(error, StressFailure):
        return error
    if isinstance(error, InvariantError):
        return StressFailure(error.name, error.message)
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, RaceError):
        return StressFailure(CheckName.RACE, error.message)
    if isinstance(error, DivergenceError):
        return StressFailure(CheckName.DIVERGENCE, error.message)
    if isinstance(error, TablesError):
        return StressFailure(CheckName.MAPS, message)
    if not in_engine and isinstance(error, KvdClientError):
        return StressFailure(CheckName.CLIENT, message)
    return StressFailure(CheckName.ENGINE if in_engine else CheckName.CLIENT, message)
