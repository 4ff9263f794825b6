"""What each purpose charges a request, as data, with the reason beside each cell."""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, Generic, NamedTuple, TypeVar


class DemandPurpose(StrEnum):
    """Who asks, and for what."""

    CEILING = "ceiling"
    ADMIT = "admit"
    LOAD_BACK = "load_back"
    DECODE_PREALLOC = "decode_prealloc"


class Arena(Enum):
    """The arena that a purpose looks at."""

    EMPTY = auto()
    """Nothing is resident, loaded or held."""
    LIVE = auto()


class FullTokens(Enum):
    """Tokens that a purpose charges on the full-attention band."""

    WHOLE = auto()
    """Everything behind the resident prefix, to the last token that may come."""
    PASS = auto()
    """What is loaded, the first chunk, and the tokens that may come."""
    TRANSFER = auto()
    """A prompt computed elsewhere with a reserve, or all of it less what may be retracted."""


class WindowPages(Enum):
    """Pages that a purpose charges on every window band."""

    PEAK = auto()
    PASS = auto()
    TAIL = auto()


class SlotParts(NamedTuple):
    """State slots charged besides the working and tracking ones."""

    replacement: bool
    """The slot that takes the place of one the tree keeps, before the request ends."""
    loaded: bool
    """The slot that a checkpoint is loaded into."""


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Cell(Generic[_Value]):
    """One cell of the rules, with the reason for it."""

    value: _Value
    reason: str


@dataclass(frozen=True, slots=True)
class DemandRule:
    """How one purpose prices a request."""

    asked_by: str
    arena: Cell[Arena]
    full: Cell[FullTokens]
    window: Cell[WindowPages]
    slots: Cell[SlotParts]
    past_end: Cell[bool]
    """Whether tokens count that steps take before the end of a sequence is seen."""


DEMAND_RULES: Final[dict[DemandPurpose, DemandRule]] = {
    DemandPurpose.CEILING: DemandRule(
        asked_by="arrival: the memory clip, and whether a request can ever run",
        arena=Cell(Arena.EMPTY, "what is cached now may be evicted before the request runs"),
        full=Cell(FullTokens.WHOLE, "the last token is taken while the first is still held"),
        window=Cell(
            WindowPages.PEAK,
            "all rows of a chunk are bound before any slides, so the second chunk stands beside "
            "the window that the first one left",
        ),
        slots=Cell(
            SlotParts(replacement=True, loaded=False), "nothing is cached, so nothing is loaded"
        ),
        past_end=Cell(True, "a request that is told it fits must be able to take its last step"),
    ),
    DemandPurpose.ADMIT: DemandRule(
        asked_by="admission of one request",
        arena=Cell(Arena.LIVE, "a locked prefix and what is held already are not asked again"),
        full=Cell(
            FullTokens.WHOLE,
            "the promise covers the request to its end even when the pass is cut: whoever comes "
            "later cannot spend its remainder",
        ),
        window=Cell(
            WindowPages.PEAK,
            "a promise covers every later chunk; priced for its first pass alone, a request "
            "would hold the window and wait for its own second chunk",
        ),
        slots=Cell(
            SlotParts(replacement=True, loaded=True),
            "the tree keeps a slot and the request needs another at that instant",
        ),
        past_end=Cell(True, "a yes is a take that succeeds, the last one included"),
    ),
    DemandPurpose.LOAD_BACK: DemandRule(
        asked_by="just before host rows are pinned for a load",
        arena=Cell(Arena.LIVE, "only rows without a copy on the device are loaded"),
        full=Cell(
            FullTokens.PASS,
            "the load's rows cannot move while they arrive: what follows at once is laid out with "
            "them, later chunks are the promise's business",
        ),
        window=Cell(WindowPages.PASS, "the loaded window stands in front of the first chunk"),
        slots=Cell(
            SlotParts(replacement=False, loaded=True),
            "the checkpoint arrives in a slot of its own; none is replaced in this pass",
        ),
        past_end=Cell(False, "the sequence does not end in the pass that loads it"),
    ),
    DemandPurpose.DECODE_PREALLOC: DemandRule(
        asked_by="a decoding node, per prompt computed elsewhere",
        arena=Cell(Arena.LIVE, "what the node holds back for others is added by the asker"),
        full=Cell(
            FullTokens.TRANSFER,
            "the transfer and a reserve must fit now; the rest may come from retracting others",
        ),
        window=Cell(WindowPages.TAIL, "rows that slid out elsewhere are never sent"),
        slots=Cell(
            SlotParts(replacement=False, loaded=False), "the state arrives in the working slot"
        ),
        past_end=Cell(True, "decoding is all that this node does with the request"),
    ),
}
