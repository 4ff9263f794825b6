"""Operations drawn from a seed, carried out by a rank's applier on the modelled device.

Requests come, run, become values and go; values are backed up, loaded into, sent and evicted; peers
write pages of requests that do not run meanwhile; forwards and the world run in between. Whatever
the engine refuses is left out. A scheduler that keeps to the contract never causes a race.
"""

from random import Random

from kvd.errors import OperationError
from kvd.testing.modelled.transfers import Transfer
from kvd_proto.operations import (
    Advance,
    BackupSubmit,
    BatchEnd,
    Evict,
    Free,
    Hold,
    Idle,
    Insert,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Operation,
    Post,
    Publish,
    Released,
    Relief,
    ResetSink,
    Take,
)
from kvd_proto.outcomes import AdmitResult, Done, Outcome, Resolved
from tests.mutation.applier_bench import POOL_PLACES, ApplierBench
from tests.mutation.operation_scenes import admit
from tests.stateful.ranks import int64s
from tests.stateful.values import BANDS, LONG_WINDOW, SHORT_WINDOW, hosts

ROWS_MAX = 5
VALUES_MAX = 3
STEPS_MAX = 3


class RandomOperations:
    """A scheduler without sense, that breaks no rule."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self._random = Random(seed)
        self.bench = ApplierBench(as_replies=bool(seed % 2), spare_bytes=1 << 12)
        self.counts: dict[str, int] = {}
        """How often each kind of operation was served."""
        self._newest = {"request": 2, "value": 1, "copy": 0, "transfer": 0}
        self._running = [2]
        self._received: dict[int, int] = {}
        """Requests that a peer writes, or is to write, by transfer."""
        self._values = [1]
        self._ran_in: dict[int, int] = {}
        """The newest step that each request ran in."""
        self._peers: dict[int, list[Transfer]] = {}
        weights = {
            self._admit: 4,
            self._grow: 3,
            self._insert: 1,
            self._evict: 1,
            self._free: 1,
            self._back_up: 2,
            self._load: 2,
            self._send: 1,
            self._receive: 1,
            self._relieve: 2,
            self._end_batch: 1,
            self._launch: 4,
            self._process: 3,
            self._go_on: 3,
            self._end_uses: 3,
        }
        self._kinds = [kind for kind, weight in weights.items() for _ in range(weight)]

    def play(self, count: int) -> None:
        """Draw and carry out; raises RaceError."""
        for _ in range(count):
            self._random.choice(self._kinds)()
        self.bench.run()

    # ---- requests and values ----------------------------------------------------------------

    def _admit(self) -> None:
        if len(self._running) + len(self._received) >= ROWS_MAX:
            return
        tokens = self._random.randrange(1, 41)
        outcome = self._try("admit", admit(self._next("request"), tokens))
        if outcome is None:
            return
        assert isinstance(outcome.result, AdmitResult)
        request = self._newest["request"]
        if not outcome.result.refusals:
            self._running.append(request)
            self._try("advance", Advance(int64s([request]), tokens))

    def _grow(self) -> None:
        if self._running:
            request = self._random.choice(self._running)
            if self._try("take", Take(int64s([request]), self._random.randrange(1, 5))):
                self._try("advance", Advance(int64s([request]), 1))

    def _insert(self) -> None:
        ran = [one for one in self._running if one in self._ran_in]
        if ran and len(self._values) < VALUES_MAX:
            request = self._random.choice(ran)
            if self._try("insert", Insert(self._next("value"), request)):
                self._running.remove(request)
                self._values.append(self._newest["value"])

    def _evict(self) -> None:
        if self._values:
            value = self._random.choice(self._values)
            if self._try("evict", Evict(int64s([value]))):
                self._values.remove(value)

    def _free(self) -> None:
        if self._running:
            request = self._random.choice(self._running)
            if self._try("free", Free(int64s([request]))):
                self._running.remove(request)

    def _relieve(self) -> None:
        if self._random.random() < 0.2:
            self._try("reset_sink", ResetSink())
        demand = tuple(self._random.choice((0, 0, 1, 3, 9)) for _ in range(BANDS))
        self._try("relief", Relief(demand))

    def _end_batch(self) -> None:
        self._try("batch_end", Idle())
        self._try("batch_end", BatchEnd())

    # ---- copies and transfers ---------------------------------------------------------------

    def _back_up(self) -> None:
        if self._values:
            band = self._random.randrange(BANDS)
            ids = self._ids_of(self._random.choice(self._values), band)[:POOL_PLACES]
            if ids:
                units = tuple(int64s(ids) if index == band else b"" for index in range(BANDS))
                operation = BackupSubmit(self._next("copy"), units, hosts(band, len(ids)))
                self._try("backup", operation)

    def _load(self) -> None:
        if not self._values:
            return
        value, band = (
            self._random.choice(self._values),
            self._random.choice((LONG_WINDOW, SHORT_WINDOW)),
        )
        names = self.bench.engine.requests.values.get(value).missing(band).tolist()[:3]
        if not names:
            return
        units = tuple(len(names) if index == band else 0 for index in range(BANDS))
        number = self._next("copy")
        outcome = self._try("load_reserve", LoadReserve(number, value, units))
        if outcome is None or not isinstance(outcome.result, Done):
            return
        self._try("load_name", LoadName(number, band, int64s(names)))
        if self._random.random() < 0.2:
            self._try("load_cancel", LoadCancel(number))
        else:
            self._try("load_submit", LoadSubmit(number, hosts(band, len(names))))

    def _send(self) -> None:
        if not self._values:
            return
        value = self._random.choice(self._values)
        units = tuple(int64s(self._ids_of(value, index)) for index in range(BANDS))
        outcome = self._try("post", Post(self._next("transfer"), units))
        if outcome is not None and isinstance(outcome.result, Resolved):
            self._tell_peer(outcome, self._newest["transfer"], writes=False)

    def _receive(self) -> None:
        # A step that stated nothing may write a request that ran in it: nobody could tell.
        processed = self.bench.engine.chain.steps.processed_count
        idle = [one for one in self._running if self._ran_in.get(one, 0) <= processed]
        if not idle:
            return
        request = self._random.choice(idle)
        units = tuple(int64s(self._pages_of(request, index)) for index in range(BANDS))
        number = self._next("transfer")
        if self._try("hold", Hold(number, units)) is None:
            return
        self._running.remove(request)
        self._received[number] = request
        if self._random.random() < 0.5:
            self._relieve()
        self._publish(number)

    def _publish(self, number: int) -> None:
        outcome = self._try("publish", Publish(number))
        if outcome is not None and isinstance(outcome.result, Resolved):
            self._tell_peer(outcome, number, writes=True)

    def _tell_peer(self, outcome: Outcome, number: int, *, writes: bool) -> None:
        self._peers[number] = self.bench.tell_peer(outcome, writes=writes)

    def _end_uses(self) -> None:
        """Release what is over, and publish what could not be before."""
        copies = tuple(self.bench.take_ended_copies())
        transfers = tuple([number for number, peer in self._peers.items() if _all_ended(peer)])
        if copies or transfers:
            self.bench.release(Released(copies=copies, transfers=transfers))
            self._count("released")
        for number in transfers:
            del self._peers[number]
            if number in self._received:
                self._running.append(self._received.pop(number))
        for number in self._received:
            if number not in self._peers:
                self._publish(number)

    # ---- forwards and the world -------------------------------------------------------------

    def _launch(self) -> None:
        steps = self.bench.engine.chain.steps
        if not self._running or steps.in_flight_count >= STEPS_MAX:
            return
        chosen = self._random.sample(self._running, self._random.randint(1, len(self._running)))
        pages = [(band, self._pages_of(one, band)) for one in chosen for band in range(BANDS)]
        states = self._random.random() < 0.7
        written = pages
        if states:
            requests = self.bench.engine.requests
            ids = requests.written_ids(requests.names.rows_of(chosen))
            written = [(band, names.tolist()) for band, names in enumerate(ids)]
        self.bench.launch(
            *written, reads=pages, writes=sorted(chosen) if states else None, reads_sink=True
        )
        self._ran_in.update(dict.fromkeys(chosen, steps.launched_count))
        self._count("launch")

    def _process(self) -> None:
        if self.bench.engine.chain.steps.in_flight_count:
            self.bench.process()
            self._count("processed")

    def _go_on(self) -> None:
        self.bench.world.advance(self._random.randrange(12))

    # ---- inside -----------------------------------------------------------------------------

    def _try(self, kind: str, operation: Operation) -> Outcome | None:
        """Decide an operation; None for one that was turned down as wrong use now."""
        try:
            outcome = self.bench.decide(operation)
        except OperationError:
            return None
        self._count(kind)
        return outcome

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _next(self, kind: str) -> int:
        self._newest[kind] += 1
        return self._newest[kind]

    def _ids_of(self, value: int, band: int) -> list[int]:
        values = self.bench.engine.requests.values
        return values.ids_of(values.get(value), band).tolist()

    def _pages_of(self, request: int, band: int) -> list[int]:
        requests = self.bench.engine.requests
        return requests.holdings.ids(band, requests.names.rows_of([request])).tolist()


def _all_ended(transfers: list[Transfer]) -> bool:
    return all(transfer.ended for transfer in transfers)
