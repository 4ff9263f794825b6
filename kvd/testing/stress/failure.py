"""What the harness checks, by name, and how it says that something is wrong.

The names follow the fifteen checks of semantics 11.4; two of them are split where that tells more.
"""

from enum import StrEnum

from kvd.errors import DivergenceError, InvariantError, RaceError
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
    CLIENT = "stress.client"
    """A rank carries out what it is told: no error of a client that keeps to the contract."""
    ENGINE = "stress.engine"
    """The engine decides whatever it is asked: it raises nothing but what its callers expect."""


class StressFailure(AssertionError):
    """A check of the harness did not hold."""

    def __init__(self, check: str, message: str, *, step_index: int = -1) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check
        self.message = message
        self.step_index = step_index
        """Place of the step that was played in its program; -1 before the first."""


def failure_of(error: Exception, *, in_engine: bool) -> StressFailure:
    """Return what an exception of the code under test means.

    An invariant of kvd's own that does not hold keeps its name.
    """
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
