"""What an arena's allocator stream has been put behind: steps, copies, and fences on bytes.

All bands of a chain share one of these. Whoever writes units asks their ledgers and the fences what
has to be waited for; what is waited for here is collected until the operation's effects are built,
and is over for everything the stream does later.

Invariants:
    order.waits_emitted: between two operations nothing is collected that no effect waits for
"""

from typing import TYPE_CHECKING

from kvd.alloc.byte_fences import ByteFences
from kvd.alloc.checks import CheckMonitor
from kvd.alloc.clearance import CLEARANCE, READ_CLEARANCE, Clearance, ReadClearance
from kvd.alloc.forward_steps import ForwardSteps
from kvd.alloc.signals import Signal, SignalKind, copy_signal, step_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class ArenaOrder:
    """Steps, fences and waits of one arena."""

    def __init__(
        self,
        monitor: CheckMonitor,
        *,
        clearance: Clearance = CLEARANCE,
        read_clearance: ReadClearance = READ_CLEARANCE,
    ) -> None:
        self._monitor = monitor
        self.steps = ForwardSteps()
        self.fences = ByteFences(monitor)
        self.clearance = clearance
        self.read_clearance = read_clearance
        self.waited: dict[Signal, None] = {}
        """Copies that are not over but were waited for."""
        self.on_retire: list[Callable[[int], None]] = []
        """Called with every step that retires; the bands' ledgers register here."""
        self._waits: dict[Signal, None] = {}

    def wait(self, signals: "Iterable[Signal]") -> None:
        """Have what follows run behind the ends of steps and copies."""
        for signal in signals:
            if signal.kind is SignalKind.STEP:
                self.wait_step(signal.number)
            elif signal not in self.waited:
                assert signal.kind is SignalKind.COPY, "no stream waits for a transfer"
                self.waited[signal] = self._waits[signal] = None

    def wait_step(self, step: int) -> None:
        """Have what follows run behind a step, which retires it and all before it."""
        if step > self.steps.retired_count:
            self.retire(step)
            self._waits[step_signal(step)] = None

    def retire(self, step: int) -> None:
        """Take in that the allocator's stream cannot meet a step any more, nor those before it."""
        self.steps.retire_through(step)
        self.fences.retire_through(step)
        for retire in self.on_retire:
            retire(step)

    def release_copy(self, copy: int) -> None:
        """Forget a copy that is over."""
        self.waited.pop(copy_signal(copy), None)

    def take_waits(self) -> tuple[Signal, ...]:
        """Return what the last changes have to run behind, and forget it; the newest step only."""
        if not self._waits:
            return ()
        waits = list(self._waits)
        self._waits = {}
        newest = max([item.number for item in waits if item.kind is SignalKind.STEP], default=0)
        return tuple(
            item for item in waits if item.kind is not SignalKind.STEP or item.number == newest
        )

    def check(self) -> None:
        """Check steps and fences: step.counters_ordered, ledger.records_exact."""
        self.steps.check(self._monitor)
        self.fences.check()
        if self.fences.retired_step != self.steps.retired_count:
            self._monitor.fail(
                "step.counters_ordered",
                f"fences are retired through step {self.fences.retired_step}, steps through "
                f"{self.steps.retired_count}",
            )

    def check_emitted(self) -> None:
        """Check, behind an operation, that its effects wait for what was found: no wait is owed."""
        if self._waits:
            owed = ", ".join(f"{signal.kind} {signal.number}" for signal in self._waits)
            self._monitor.fail("order.waits_emitted", f"no effect waits for {owed}")
