"""The blocking client: runs the session's flows and waits where they say so."""

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kvd_client.calls import Batch, Ids
from kvd_client.device.host.device import host_device
from kvd_client.device.port import Device, Stream
from kvd_client.errors import DeadlineError, KvdClientError, ReplyError, TablesError
from kvd_client.flow import Exchange, Flow
from kvd_client.hello import Config, build_hello, declaration_of, hello_message, read_welcome
from kvd_client.launch import Launching, Step, Table
from kvd_client.rank import DEADLINE_MS, Rank, RankMemory, connecting, map_memory
from kvd_client.transport import Transport, exchange
from kvd_proto.control import Mode, Role, Welcome, WhatIf, WhatIfReply
from kvd_proto.memory import Declaration, SizingInputs
from kvd_proto.operations import AnyFact


def attach(
    address: str,
    *,
    group: str,
    stage: int = 0,
    rank: int = 0,
    tp: int = 1,
    pp: int = 1,
    program: int = 0,
    mode: Mode = Mode.MIRRORED,
    role: Role = Role.SCHEDULER,
    declare: Config | Declaration,
    draft: Config | None = None,
    sizing: SizingInputs | None = None,
    deadline_ms: int = DEADLINE_MS,
    attach_deadline_ms: int | None = None,
    transport: Transport | None = None,
    device: Device | None = None,
    stream: Stream | None = None,
    overlap: bool = False,
) -> "Client":
    """Attach this process as one rank and return its client; blocks until the group is whole.

    ``declare`` is a Hugging Face configuration (mapping, path or text) or parts; ``sizing`` wins
    over the daemon's settings. ``stream`` is where forwards run, a stream of our own if it is not
    given. Effects go to the same stream; with ``overlap`` they have one beside it, and several
    steps may be in flight: launched, and not reported as processed.

    Raises UnreachableError (no daemon), AttachError (its refusal), DeadlineError, UsageError.
    """
    wait_ms = deadline_ms if attach_deadline_ms is None else attach_deadline_ms
    hello = build_hello(
        group=group,
        stage=stage,
        rank=rank,
        tp=tp,
        pp=pp,
        program=program,
        role=role,
        mode=mode,
        declare=declaration_of(declare, draft, group),
        sizing=sizing,
        overlap=overlap,
        gpu_uuid="" if device is None else device.gpu_uuid,
    )
    with connecting(address, transport) as way:
        message = hello_message(hello, way.open(wait_ms))
        exchange(way, message, wait_ms)
        welcome = read_welcome(message)
        rank_memory = map_memory(
            way.fetch(welcome.token, wait_ms),
            plan=welcome.plan,
            device=device or host_device(),
            forward=stream,
            overlap=overlap,
        )
        return Client(
            welcome=welcome,
            program=program,
            mode=mode,
            transport=way,
            mapped=rank_memory,
            deadline_ms=deadline_ms,
        )


class Client(Rank):
    """A rank whose calls block until they are answered.

    Several threads may call; one at a time is served. What a launch block does in one thread does
    not wait for a batch that another sends meanwhile; see `kvd_client.launch`.
    """

    def __init__(
        self,
        *,
        welcome: Welcome,
        program: int,
        mode: Mode,
        transport: Transport,
        mapped: RankMemory,
        deadline_ms: int,
    ) -> None:
        super().__init__(
            welcome=welcome,
            program=program,
            mode=mode,
            transport=transport,
            mapped=mapped,
            deadline_ms=deadline_ms,
        )
        # Reentrant, so that its own thread gets on if an interrupt kept it from being released.
        self._turn = threading.RLock()

    def batch(self) -> "BatchBlock":
        """Open a block of operations: one message and one reply when it ends.

        Leaving it by an exception sends nothing. Wrong use of an operation raises OperationError at
        the end, after everything before it was done.
        """
        return BatchBlock(self)

    def launch(
        self,
        stream: Stream | None = None,
        *,
        step: int | None = None,
        position: int | None = None,
        writes: Ids | None = None,
        tables: Sequence[Table] = (),
    ) -> "LaunchBlock":
        """Open the block of one forward, ordered behind the effects up to here.

        ``writes`` are the requests whose pages and slots the forward writes; where it is not
        stated, it may write to everything that is live, and nothing of that moves meanwhile.
        ``tables`` that were made before are checked: StepOrderError if units moved since. A
        follower passes the leader's ``step`` and ``position``, and blocks until they are applied.

        Leaving the block by an exception reports the step as aborted.
        """
        launching = self.new_launch(
            stream, step=step, position=position, writes=writes, tables=tables
        )
        return LaunchBlock(self, launching)

    def follow(
        self, position: int, *, records: Sequence[bytes] = (), deadline_ms: int | None = None
    ) -> None:
        """Apply the log up to a position, no further; for followers.

        ``records`` are what the leader's `Batch.record` gave: with them requests are known by id.
        """
        self.run(self.session.follow(position, records, deadline_ms or self.deadline_ms))

    def fact(self, fact: AnyFact) -> None:
        """State a fact of this rank."""
        self.run(self.session.state_fact(fact))

    def ping(self) -> None:
        """Show the daemon that this rank lives; an idle client does it within the heartbeat."""
        self.run(self.session.ping())

    def what_if(
        self,
        demand_units: Sequence[int] = (),
        *,
        prompt_tokens: int = 0,
        new_tokens_max: int = 0,
        chunk_tokens: int = 0,
    ) -> WhatIfReply:
        """Ask whether a demand would fit now, after which rearrangement, and what it would move.

        Either units per band in chain order, or a request by its tokens; the answer also says how
        many new tokens memory can ever grant it. Changes nothing.
        """
        question = WhatIf(
            demand_units=tuple(demand_units),
            prompt_tokens=prompt_tokens,
            new_tokens_max=new_tokens_max,
            chunk_tokens=chunk_tokens,
        )
        self.run(self.session.what_if(question))
        reply = self.session.what_if_reply
        assert reply is not None
        return reply

    def memory_clip(self, prompt_tokens: int, new_tokens_max: int, chunk_tokens: int = 0) -> int:
        """Return the new tokens that memory can ever grant a request beside its prompt.

        At most ``new_tokens_max``; 0 also where the request could never run: longer than the
        context, or its prompt alone is more than an empty arena holds. ``chunk_tokens`` as in an
        admit; 0 is the chunk that the stage was sized with. Changes nothing.
        """
        reply = self.what_if(
            prompt_tokens=prompt_tokens, new_tokens_max=new_tokens_max, chunk_tokens=chunk_tokens
        )
        return reply.new_tokens

    def check_tables(self) -> int:
        """Compare this rank's tables in its memory with the daemon's books; both change nothing.

        Waits until all effects have run. Returns how many tables were compared. Raises
        TablesError, and this rank is lost, where one differs; UsageError where the log holds
        effects that this rank has not applied, so that nothing can be compared.
        """
        self.run(self.table_check.asked())
        return self.table_check.tables_count

    def close(self) -> None:
        """Say goodbye, which ends the incarnation, and release everything; harmless when repeated.

        With the daemon's check level ``strict`` the tables are compared first, as `check_tables`
        does where it can. Raises ForkedError in a fork, and TablesError when everything is
        released; an answer that does not come keeps nothing open.
        """
        self.session.check_process()
        if self.session.closed:
            return
        try:
            self.run(self.table_check.leaving())
        except TablesError:
            raise
        except KvdClientError:
            # Without an answer, or without a session, the end of the lifeline says it all.
            pass
        finally:
            self._release()

    def run(self, flow: Flow) -> None:
        """Run a flow of the session to its end, after those of other threads."""
        self._take_turn()
        try:
            for command in flow:
                if isinstance(command, Exchange):
                    exchange(self._transport, command.message, command.deadline_ms)
                else:
                    command.wait()
        except ReplyError as error:
            # An answer that nobody can read may have held effects: the cursor has a gap from here.
            self.session.poison(error.message)
            raise
        finally:
            try:
                self._send_report()
            finally:
                self._turn.release()

    def _take_turn(self) -> None:
        """Keep other threads out; raises DeadlineError if one of them does not come to an end."""
        if self._turn.acquire(blocking=False):
            return
        self.session.check_process()  # in a fork the other thread does not exist
        if not self._turn.acquire(timeout=self.deadline_ms / 1000):
            raise DeadlineError(
                f"another thread's call of this client did not end within {self.deadline_ms} ms"
            )

    def __enter__(self) -> Self:
        self.session.check_usable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BatchBlock:
    """The block of `Client.batch`."""

    __slots__ = ("_batch", "_client")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batch: Batch | None = None

    def __enter__(self) -> Batch:
        client = self._client
        # Now and not only when the batch is sent: what it asks depends on what is applied.
        client.run(client.session.settle())
        self._batch = client.session.new_batch()
        return self._batch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        batch = self._batch
        assert batch is not None
        batch.close()
        if kind is None:
            self._client.run(self._client.table_check.sending(batch))


class LaunchBlock:
    """The block of `Client.launch`."""

    def __init__(self, client: Client, launching: Launching) -> None:
        self._client = client
        self._launching = launching

    def __enter__(self) -> Step:
        client = self._client
        try:
            client.run(self._launching.opening(client.deadline_ms))
        except BaseException:
            self._launching.abandon()
            raise
        return self._launching.step

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        step = self._launching.step
        step.end(aborted=error is not None)
        if error is None:
            return
        try:
            self._client.fact(step.aborted())
        except KvdClientError as late:
            # It stays due and goes out before the next batch; the step's own error matters more.
            error.add_note(f"step {step.number} could not be reported as aborted yet: {late}")
