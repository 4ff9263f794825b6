"""Ranks of one stage over modelled devices: real clients, one real engine, one thread.

Every rank attaches to the same incarnation without a socket. Its memory, its streams and its
forwards are modelled, all of them in one world, so that one seed decides how far each is at any
time.
"""

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from kvd.alloc.checks import CheckLevel
from kvd.build import StageStorage
from kvd.testing.in_process import InProcessDaemon, InProcessTransport, RankMemories
from kvd.testing.modelled.device import ModelledDevice
from kvd.testing.modelled.forward import ModelledForward
from kvd.testing.modelled.memory import ModelledMemory
from kvd.testing.modelled.world import World
from kvd.testing.passes import StepWork
from kvd_client import Client, attach
from kvd_proto.control import Mode
from kvd_proto.memory import DeclaredLayers, SizingInputs
from kvd_proto.scalars import Position, StepNumber

DEADLINE_MS: Final = 1_000
"""Passes to clients that ask for one; no time passes in a world."""
GROUP: Final = "modelled"


class ModelledRank:
    """One rank: its device, its client, and the forwards it launches."""

    def __init__(self, *, index: int, device: ModelledDevice, client: Client) -> None:
        """Take over an attached client."""
        assert isinstance(client.memory, ModelledMemory)
        self.index = index
        self.device = device
        self.client = client
        self.memory = client.memory
        self.forward = ModelledForward(client, client.memory, rank_index=index)

    def launch(
        self,
        work: StepWork,
        *,
        step: StepNumber | None = None,
        position: Position | None = None,
        inside: Callable[[], None] | None = None,
    ) -> tuple[StepNumber, Position]:
        """Launch a forward; a follower says which step at which position.

        ``inside`` is called before the launch block is left, when the forward is enqueued.
        """
        # A follower's write set is in its leader's notice.
        writes = work.requests if step is None else None
        with self.client.launch(step=step, position=position, writes=writes) as open_step:
            self.forward.launch(open_step, work)
            if inside is not None:
                inside()
            return StepNumber(open_step.number), Position(open_step.position)

    def close(self) -> None:
        """Leave the group, which ends the incarnation, and close the streams."""
        self.client.close()


class ModelledStage:
    """All ranks of a stage, attached."""

    def __init__(
        self,
        storage: StageStorage,
        *,
        layers: DeclaredLayers,
        sizing: SizingInputs,
        world: World,
        ranks: int = 2,
        mode: Mode = Mode.MIRRORED,
        overlap: bool = False,
        level: CheckLevel = CheckLevel.STRICT,
        idle_moves_max: int = 0,
        batch_moves_max: int = 0,
        memories: RankMemories | None = None,
    ) -> None:
        """Attach every rank; with LEADER the first one leads and the others follow the log.

        ``memories`` are those of an earlier incarnation, which stay the caller's to close.
        """
        self.world = world
        self.daemon = InProcessDaemon(
            storage,
            ranks=ranks,
            level=level,
            idle_moves_max=idle_moves_max,
            batch_moves_max=batch_moves_max,
            # At level strict a rank waits for its effects at idle, which would hide missing waits.
            told_level=CheckLevel.WARN,
        )
        self.ranks: list[ModelledRank] = []
        with ExitStack() as stack:
            plan = storage.storage
            if memories is None:
                memories = RankMemories(plan.total_bytes, ranks=ranks)
                stack.callback(memories.close)
            for index in range(ranks):
                device = ModelledDevice(world, rank=str(index), plan=plan, declares_only=True)
                world.note = f"rank {index}, attach"
                follows = mode is not Mode.MIRRORED and index
                client = attach(
                    "ipc:///nowhere",
                    group=GROUP,
                    rank=index,
                    tp=ranks,
                    mode=Mode.FOLLOWER if follows else mode,
                    declare=layers,
                    sizing=sizing,
                    deadline_ms=DEADLINE_MS,
                    transport=InProcessTransport(self.daemon, memories, rank=index),
                    device=device,
                    overlap=overlap,
                )
                rank = ModelledRank(index=index, device=device, client=client)
                self.ranks.append(rank)
                stack.callback(rank.close)
            self._stack = stack.pop_all()

    @property
    def findings(self) -> tuple[str, ...]:
        """Return what the forwards of all ranks found wrong so far."""
        return tuple(finding for rank in self.ranks for finding in rank.forward.findings)

    def close(self) -> None:
        """Run everything that is enqueued, and detach all ranks."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
