"""The blocking client: runs the session's flows and waits where they say so."""

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from kvd_client.calls import Batch
from kvd_client.device.host.device import host_device
from kvd_client.device.port import Device, Stream
from kvd_client.errors import KvdClientError, ReplyError
from kvd_client.flow import Exchange, Flow
from kvd_client.hello import Config, build_hello, declaration_of, hello_message, read_welcome
from kvd_client.launch import Step
from kvd_client.rank import DEADLINE_MS, Rank, connecting, map_memory
from kvd_client.transport import Transport, exchange
from kvd_proto.control import Mode, Role, WhatIf, WhatIfReply
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
    forward_stream: Stream | None = None,
) -> "Client":
    """Attach this process as one rank and return its client; blocks until the group is whole.

    ``declare`` is a Hugging Face configuration (mapping, path or text) or parts; ``sizing`` wins
    over the daemon's settings. Effects go to ``forward_stream``, or to a stream of our own.

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
    )
    with connecting(address, transport) as way:
        message = hello_message(hello, way.open(wait_ms))
        exchange(way, message, wait_ms)
        welcome = read_welcome(message)
        rank_memory = map_memory(
            way.fetch(welcome.token, wait_ms),
            plan=welcome.plan,
            device=device or host_device(),
            forward_stream=forward_stream,
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
    """A rank whose calls block until they are answered."""

    def batch(self) -> "BatchBlock":
        """Open a block of operations: one message and one reply when it ends.

        Leaving it by an exception sends nothing. Wrong use of an operation raises OperationError at
        the end, after everything before it was done.
        """
        return BatchBlock(self)

    def launch(
        self,
        forward_stream: Stream | None = None,
        *,
        step: int | None = None,
        position: int | None = None,
    ) -> "LaunchBlock":
        """Open the block of one forward, ordered behind the effects up to here.

        A follower passes the leader's ``step`` and ``position``, and blocks until they are applied.
        Leaving the block by an exception reports the step as aborted.
        """
        return LaunchBlock(self, forward_stream, step=step, position=position)

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

    def close(self) -> None:
        """Say goodbye, which ends the incarnation, and release everything; harmless when repeated.

        Raises ForkedError in a fork; an answer that does not come keeps nothing open.
        """
        self.session.check_process()
        if self.session.closed:
            return
        try:
            # Without an answer, or without a session, the end of the lifeline says it all.
            with suppress(KvdClientError):
                self.run(self.session.say_bye())
        finally:
            self._release()

    def run(self, flow: Flow) -> None:
        """Run a flow of the session to its end."""
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
            self._send_report()

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
            self._client.run(self._client.session.send_batch(batch))


class LaunchBlock:
    """The block of `Client.launch`."""

    def __init__(
        self,
        client: Client,
        forward_stream: Stream | None,
        *,
        step: int | None,
        position: int | None,
    ) -> None:
        self._client = client
        self._forward_stream = forward_stream
        self._number = step
        self._position = position
        self._step: Step | None = None

    def __enter__(self) -> Step:
        client = self._client
        client.run(client.session.prepare_launch(self._number, self._position, client.deadline_ms))
        self._step = client.new_step(self._forward_stream, self._number)
        self._step.begin()
        return self._step

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        step = self._step
        assert step is not None
        step.end()
        if error is None:
            return
        try:
            self._client.fact(step.aborted())
        except KvdClientError as late:
            # It stays due and goes out before the next batch; the step's own error matters more.
            error.add_note(f"step {step.number} could not be reported as aborted yet: {late}")
