"""Who may still touch which bytes: the ledger of semantics section 8, as plain sets of grains.

A grain is the largest piece of memory that no unit of any band cuts. A use covers grains from its
beginning to its end, whatever becomes of the band that had them: so there is no telling records of
a span from fences on bytes that left it, which is kvd's own housekeeping.
"""

from collections.abc import Iterable

from kvd.alloc.signals import Signal, SignalKind, step_signal, transfer_signal
from kvd.alloc.uses import UseKind
from kvd.testing.stress.broken import broken, require

Grains = set[int]
UseKey = tuple[UseKind, Signal]

NETWORK = (UseKind.NETWORK_SEND, UseKind.NETWORK_RECEIVE)
COPIES = (UseKind.COPY_READ, UseKind.COPY_WRITE)


class OpenAccesses:
    """Every access that is not over, steps included."""

    def __init__(self) -> None:
        self.launched = 0
        self.processed = 0
        self.retired = 0
        """Every step up to this one is over for the allocator's stream."""
        self.writes: dict[int, Grains | None] = {}
        """What steps that are not retired write; None: any live unit."""
        self.uses: dict[UseKey, Grains] = {}
        self.waited: set[Signal] = set()
        """Copies that are not over, which the allocator's stream is behind all the same."""
        self.astray: set[Signal] = set()
        """Transfers that failed while their peer may go on."""
        self.aborted: set[int] = set()

    @property
    def pending_key(self) -> int:
        """Return the newest step in flight, under which what is freed pends; 0: there is none."""
        return self.launched if self.launched > self.processed else 0

    # ---- steps ----------------------------------------------------------------------------------

    def launch(self, step: int, writes: Grains | None) -> None:
        """Take in a launch and what it writes."""
        require(step == self.launched + 1, "steps", f"step {step} launched behind {self.launched}")
        self.launched = step
        if step in self.aborted:
            writes = None
        if writes is None or writes:
            self.writes[step] = writes

    def abort(self, step: int) -> None:
        """Take in that nobody knows what a step writes."""
        self.aborted.add(step)
        if self.retired < step <= self.launched:
            self.writes[step] = None

    def process(self, step: int) -> bool:
        """Take in that a step was processed; return whether it was not retired before."""
        require(
            self.processed + 1 == step <= self.launched,
            "steps",
            f"step {step} processed, {self.processed} were and {self.launched} are launched",
        )
        self.processed = step
        is_news = step > self.retired
        self.retire(step)
        return is_news

    def retire(self, step: int) -> None:
        """Take in that the allocator's stream is behind a step, and all before it."""
        require(
            step <= self.launched, "steps", f"a wait for step {step}, {self.launched} are launched"
        )
        self.retired = max(self.retired, step)
        self.writes = {number: it for number, it in self.writes.items() if number > self.retired}
        over = [
            key
            for key in self.uses
            if key[1].kind is SignalKind.STEP and key[1].number <= self.retired
        ]
        for key in over:
            del self.uses[key]

    # ---- uses -----------------------------------------------------------------------------------

    def open(self, kind: UseKind, signal: Signal, grains: Grains) -> None:
        """Begin a use, or widen it."""
        if grains:
            self.uses.setdefault((kind, signal), set()).update(grains)

    def open_vacated(self, grains: Grains) -> None:
        """Let steps that are not retired go on reading what moved away."""
        if self.launched > self.retired:
            self.open(UseKind.VACATED_READ, step_signal(self.launched), grains)

    def close(self, kind: UseKind, signal: Signal) -> None:
        """End one pin."""
        self.uses.pop((kind, signal), None)

    def release(self, signal: Signal) -> None:
        """End all of a copy or a transfer."""
        for key in [key for key in self.uses if key[1] == signal]:
            del self.uses[key]
        self.waited.discard(signal)
        self.astray.discard(signal)

    def wait(self, signal: Signal) -> None:
        """Take in that the allocator's stream was put behind a step or a copy."""
        if signal.kind is SignalKind.STEP:
            require(
                signal.number > self.retired,
                "clearance",
                f"a wait for step {signal.number}, which is retired",
            )
            self.retire(signal.number)
            return
        require(
            any(key[1] == signal and key[0] in COPIES for key in self.uses),
            "clearance",
            f"a wait for copy {signal.number}, which is over",
        )
        self.waited.add(signal)

    # ---- questions ------------------------------------------------------------------------------

    def on(self, grains: Grains, kinds: Iterable[UseKind]) -> list[UseKey]:
        """Return the uses of some kinds that touch grains."""
        wanted = tuple(kinds)
        return [key for key, members in self.uses.items() if key[0] in wanted and members & grains]

    def network(self, *, astray: bool | None = None) -> Grains:
        """Return what peers may touch: of transfers gone astray, of the others, or of all."""
        return self.grains_of(*NETWORK, astray=astray)

    def grains_of(self, *kinds: UseKind, astray: bool | None = None) -> Grains:
        """Return all grains under uses of some kinds."""
        found: Grains = set()
        for (kind, signal), members in self.uses.items():
            if kind in kinds and (astray is None or (signal in self.astray) is astray):
                found |= members
        return found

    def writing_steps(self, grains: Grains, *, unknown: bool = True) -> list[int]:
        """Return the steps that are not retired and may write grains of a live unit."""
        return [
            step
            for step, written in self.writes.items()
            if (unknown if written is None else written & grains)
        ]

    def require_clear_write(self, grains: Grains, what: str) -> None:
        """Raise StressFailure unless the allocator's stream may write grains now.

        That is what zeroing on hand-out, and the destination of a move, need: table 8.3, rows c2
        and c3, of which c4 and c5 differ only in whether somebody else follows.
        """
        for (kind, signal), members in self.uses.items():
            if not members & grains or (kind in COPIES and signal in self.waited):
                continue
            broken("clearance", f"{what} while {signal.kind} {signal.number} has it ({kind})")
        for step, written in self.writes.items():
            if written is not None and written & grains:
                broken("clearance", f"{what} while step {step} writes it")

    def require_clear_read(self, grains: Grains, what: str) -> None:
        """Raise StressFailure unless the allocator's stream may read live units now (row r1)."""
        for step in self.writing_steps(grains):
            broken("clearance", f"{what} while step {step} may write it")
        for kind, signal in self.on(grains, [UseKind.COPY_WRITE]):
            if signal not in self.waited:
                broken("clearance", f"{what} while copy {signal.number} fills it ({kind})")

    def is_known(self, transfer: int) -> bool:
        """Return whether a transfer touches anything and is not astray."""
        signal = transfer_signal(transfer)
        return signal not in self.astray and any(key[1] == signal for key in self.uses)
