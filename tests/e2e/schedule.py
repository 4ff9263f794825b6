"""A scheduler loop that every rank can run: the same operations from the same seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from kvd_client import STANDING, Admitted, Client, Taken
from kvd_client.calls import Batch
from kvd_client.transport import Frames, ZmqTransport
from kvd_proto.codec import decode_header, decode_reply, encode
from kvd_proto.control import MessageKind
from kvd_proto.outcomes import Verdict
from tests.e2e.ranks import DEADLINE_MS

if TYPE_CHECKING:
    from queue import Queue

LIVE_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Pass:
    """What one scheduler pass asks, with request ids."""

    finished: tuple[int, ...]
    computed: tuple[tuple[int, int], ...]
    growing: tuple[int, ...]
    new: tuple[tuple[int, int, int], ...]
    """Id, prompt tokens and new tokens."""


def passes_of(seed: int, count: int) -> list[Pass]:
    """Return passes of requests that come, prefill at once, decode and finish."""
    rng = Random(seed)
    taken: dict[int, int] = {}
    total: dict[int, int] = {}
    fresh: dict[int, int] = {}
    passes: list[Pass] = []
    next_id = 1
    for _ in range(count):
        computed = tuple((one, fresh.get(one, 1)) for one in sorted(taken))
        finished = tuple(one for one in sorted(taken) if taken[one] == total[one])
        for one in finished:
            del taken[one], total[one]
        growing = tuple(sorted(taken))
        for one in growing:
            taken[one] += 1
        new: list[tuple[int, int, int]] = []
        fresh = {}
        while len(taken) < LIVE_MAX and rng.random() < 0.5:
            prompt, decode = rng.randrange(1, 17), rng.randrange(1, 20)
            new.append((next_id, prompt, decode))
            taken[next_id] = fresh[next_id] = prompt
            total[next_id] = prompt + decode
            next_id += rng.randrange(1, 4)
        kept = tuple((one, tokens) for one, tokens in computed if one not in finished)
        passes.append(Pass(finished, kept, growing, tuple(new)))
    return passes


def run_pass(client: Client, one: Pass, *, step: int) -> Batch:
    """Send one pass as a batch; fails unless everything was granted."""
    with client.batch() as batch:
        if step:
            batch.processed(step)
        batch.free(one.finished)
        batch.advance(
            [request for request, _ in one.computed], [count for _, count in one.computed]
        )
        taken = batch.take(STANDING if one.growing else (), 1)
        admitted = batch.admit(
            [request for request, _, _ in one.new],
            prompt_tokens=[prompt for _, prompt, _ in one.new],
            new_tokens_max=[decode for _, _, decode in one.new],
            take_tokens=[prompt for _, prompt, _ in one.new],
        )
        batch.standing(add=[request for request, _, _ in one.new])
    result = admitted()
    assert isinstance(result, Admitted)
    assert result.verdicts.tolist() == [Verdict.FITS] * len(one.new)
    assert isinstance(taken(), Taken)
    return batch


def paint(client: Client, ids: Sequence[int], *, step: int) -> Callable[[], None]:
    """Return work that writes the step's number into every page that the requests hold."""
    spans: list[tuple[int, int]] = []
    for band in client.plan.bands:
        if band.window_tokens or band.name == "full":
            units = client.page_table(band.name, ids).values.tolist()
        else:
            units = client.state_slots(ids).tolist()
        spans += [(unit * band.unit_bytes, band.unit_bytes) for unit in units if unit]
    arena = client.arena_array()

    def write() -> None:
        for start, size in spans:
            arena[start : start + size] = step % 251

    return write


class Told(NamedTuple):
    """What a leader tells its followers beside the log."""

    step: int
    position: int
    records: list[bytes]
    live: list[int]


def lead(client: Client, passes: Sequence[Pass], followers: Sequence["Queue[Told]"] = ()) -> None:
    """Run passes and their forwards as a rank that sends operations."""
    for number, one in enumerate(passes, start=1):
        batch = run_pass(client, one, step=number - 1)
        live = client.standing.tolist()
        with client.launch() as step:
            step.submit(paint(client, live, step=number))
            told = Told(step.number, step.position, [batch.record()], live)
        for follower in followers:
            follower.put(told)
    finish(client, step=len(passes))
    for follower in followers:
        follower.put(Told(0, client.applied, [], []))


def finish(client: Client, *, step: int) -> None:
    """End everything that still runs."""
    with client.batch() as batch:
        batch.processed(step)
        batch.idle()
    client.stream.synchronize(DEADLINE_MS)


def follow(client: Client, leader: "Queue[Told]") -> None:
    """Run the leader's forwards."""
    while True:
        told = leader.get(timeout=DEADLINE_MS / 1000)
        client.follow(told.position, records=told.records)
        if not told.step:
            client.stream.synchronize(DEADLINE_MS)
            return
        with client.launch(step=told.step, position=told.position) as step:
            step.submit(paint(client, told.live, step=told.step))


class Recorder(ZmqTransport):
    """Keeps what came in, and may lose an answer."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.entries: dict[int, bytes] = {}
        """Encoded entries by position, as received."""
        self.conflicts: list[int] = []
        """Positions that came twice with different bytes."""

    def receive(self) -> Frames:
        frames = super().receive()
        if decode_header(frames.header).kind is MessageKind.REPLY:
            reply = decode_reply(frames.body)
            for position, entry in enumerate(reply.entries, start=reply.position):
                encoded = encode(entry)
                if self.entries.setdefault(position, encoded) != encoded:
                    self.conflicts.append(position)
        return frames
