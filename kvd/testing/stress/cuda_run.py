"""Playing a program on a GPU: the same steps, on real streams with kernels that take their time.

All ranks are in this process and share one GPU, each with memory and streams of its own. Nothing
says which stream comes first, so a run is not repeated by its seed, and what is checked is what
needs no model of the streams: payload and tables by every forward, and everything at rest; that all
ranks do the same; and what the engine has on record. Of a program's steps those are left out that
a GPU cannot play: copies to host pools, which its device does not have, and deaths, because ranks
of one process have one context.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any, Final

from kvd.testing.in_process import InProcessTransport, RankMemories
from kvd.testing.stress.contents import WORD_BYTES
from kvd.testing.stress.cuda_rank import CudaRank, Subjects
from kvd.testing.stress.cuda_words import CudaWords, DeviceWords
from kvd.testing.stress.played_rank import PlayedRank
from kvd.testing.stress.program import (
    AnyStep,
    Backup,
    Die,
    FailCopy,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Program,
)
from kvd.testing.stress.run import ORACLE_PERMILLE, TWO_STREAMS_SHARE, StressRun
from kvd.testing.stress.stage import POISON, attach_client
from kvd_client.device.cuda.device import CudaDevice, cuda_device
from kvd_client.errors import KvdClientError

DEADLINE_MS: Final = 30_000
SUBJECTS_MAX: Final = 512
"""So many comparisons may be under way before the ranks are waited for."""
DELAY_US_PER_ACTION: Final = 20
POISON_WORD: Final = int.from_bytes(bytes([POISON]) * 8, "little", signed=True)
LEFT_OUT: Final = (
    Backup,
    FailCopy,
    LoadReserve,
    LoadName,
    LoadSubmit,
    LoadCancel,
    Die,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and what a run needs of it."""

    device: CudaDevice
    words: DeviceWords
    new_arena: Callable[[str, int], int]
    """Returns the descriptor of fresh memory by a name and its size in bytes."""


@cache
def the_machine() -> Machine:
    """Return the first GPU of this process; raises DeviceError without one."""
    device = cuda_device()
    # Loads the bindings, of which the device says in its own words that they are not there.
    from kvd_client.device.cuda.arena import create_arena

    return Machine(
        device=device,
        words=CudaWords(device.driver),
        new_arena=lambda _name, size_bytes: create_arena(device.gpu_uuid, size_bytes),
    )


class CudaRun(StressRun):
    """One run of a program on a GPU."""

    copies = False

    def __init__(
        self,
        program: Program,
        *,
        oracle_permille: int = ORACLE_PERMILLE,
        machine: Machine | None = None,
    ) -> None:
        """Attach the ranks of a program; ``machine`` is the first GPU of this process."""
        self._machine = the_machine() if machine is None else machine
        self._subjects = Subjects()
        self._random = Random(program.seed_index)
        self._cuda_ranks: list[CudaRank] = []
        super().__init__(program, oracle_permille=oracle_permille)

    # ---- what ranks run on ----------------------------------------------------------------------

    def new_memories(self, total_bytes: int) -> RankMemories:
        """Return memory for every rank, full of bytes that nobody wrote."""
        machine, ranks = self._machine, self.program.ranks_count
        memories = RankMemories(total_bytes, ranks=ranks, new_arena=machine.new_arena)
        stream = machine.device.stream("fills")
        for rank in range(ranks):
            with memories.opened(rank) as descriptor:
                memory = machine.device.map(descriptor, total_bytes)
            words = total_bytes // WORD_BYTES
            stream.submit(partial(machine.words.fill, memory.address, POISON_WORD, words))
            stream.synchronize(DEADLINE_MS)
            memory.close()
        stream.close(DEADLINE_MS)
        return memories

    def begin_incarnation(self) -> None:
        """Do nothing: what the ranks have in common is the GPU."""

    def attach_rank(self, index: int, transport: InProcessTransport) -> PlayedRank[Any]:
        """Attach a rank."""
        device = self._machine.device
        client = attach_client(
            self.program,
            self.built,
            index=index,
            transport=transport,
            device=device,
            deadline_ms=DEADLINE_MS,
        )
        rank = CudaRank(
            index=index,
            device=device,
            client=client,
            words=self._machine.words,
            subjects=self._subjects,
            random=self._random,
            takes_turns=self.program.seed_index % TWO_STREAMS_SHARE == 0,
        )
        self._cuda_ranks.append(rank)
        return rank

    def advance(self, actions_count: int) -> bool:
        """Hold a rank's allocator up, so that everybody else comes first."""
        rank = self._random.choice(self._cuda_ranks)
        rank.hold_up(actions_count * DELAY_US_PER_ACTION)
        return True

    def run_dry(self) -> None:
        """Wait until everything is over that is enqueued, and take in what was found."""
        for rank in self._cuda_ranks:
            rank.settle(DEADLINE_MS)
        for finding in self._machine.words.take_findings():
            self._subjects.report(*finding)
        self._subjects.clear()

    # ---- steps ----------------------------------------------------------------------------------

    def play(self, step: AnyStep) -> bool:
        """Play one step; return whether anything fitted it. Raises StressFailure."""
        if isinstance(step, LEFT_OUT):
            self.step_index += 1
            self.counts[f"{type(step).__struct_config__.tag} left out"] += 1
            return False
        return super().play(step)

    def look(self) -> None:
        """Raise what was found wrong so far."""
        if self._machine.words.found_any() or len(self._subjects) > SUBJECTS_MAX:
            self.run_dry()
        super().look()

    def close(self) -> None:
        """Let the ranks part, and give everything back."""
        for hand, rank in zip(self.stage.hands, self._cuda_ranks, strict=True):
            # A rank that failed may have nobody to part from any more; why, the run has kept.
            with suppress(KvdClientError):
                hand.leave()
            rank.close(DEADLINE_MS)
        # What only comes out now belongs to a run that has its failure, or was at rest.
        self._machine.words.take_findings()
        super().close()
