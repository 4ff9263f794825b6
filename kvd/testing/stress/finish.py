"""The end of a run: everything comes to its end, nothing is left, and an empty arena serves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvd.testing.stress.checked_rank import CheckedRank
from kvd.testing.stress.failure import CheckName, StressFailure
from kvd.testing.stress.model import Model
from kvd.testing.stress.scheduler import Scheduler
from kvd.testing.stress.script import OpenLaunch
from kvd.testing.stress.shapes import servable_prompt_tokens
from kvd_client import Batch

if TYPE_CHECKING:
    from kvd.testing.stress.run import StressRun

ROUNDS_MAX = 4
"""Batches and reports that bring everything to its end, with some to spare."""
SERVED_BATCHES_MAX = 200
SERVED_TOKENS = 6
"""Tokens generated for the last request, behind a prompt that fills the context otherwise."""


class FinishedRun(Protocol):
    """What has to be known of a run to bring it to its end."""

    scheduler: Scheduler
    model: Model

    @property
    def ranks(self) -> Sequence[CheckedRank]:
        """Return the ranks that this process plays."""
        ...


def finish(run: "StressRun") -> None:
    """Let everything end; raises StressFailure for what is left, or not as it should be."""
    _settle(run)
    check_at_rest(run)
    _end_all(run)
    serve(run)
    _end_all(run)


def _settle(run: "StressRun") -> None:
    """Let all copies, transfers and steps end."""
    scheduler, model = run.scheduler, run.model
    cancel_all(scheduler)
    for number in model.transfers:
        for rank in run.stage.ranks:
            rank.let_go(number)
    for _ in range(ROUNDS_MAX):
        _catch_up(run)
        _report(run)
        scheduler.send()
    if model.copies or model.transfers:
        raise StressFailure(
            CheckName.DRAIN,
            f"copies {list(model.copies)} and transfers {list(model.transfers)} are over on every "
            "rank and were not released",
        )
    _catch_up(run)


def cancel_all(scheduler: Scheduler) -> None:
    """Give up what is only announced, and notice that all steps are over."""
    model = scheduler.model
    if scheduler.launching:
        scheduler.close_launch()
    scheduler.send()
    for number in [one.number for one in model.copies.values() if one.loads and not one.submitted]:
        scheduler.ask(lambda batch, number=number: batch.load_cancel(number))
    for number in [one.number for one in model.transfers.values() if not one.published]:
        scheduler.ask(lambda batch, number=number: batch.cancel_hold(number))
    scheduler.process(scheduler.launched_count)
    scheduler.send()


def _catch_up(run: "StressRun") -> None:
    """Have every rank do everything, and everything that was enqueued run."""
    for hand in run.stage.hands:
        run.follow(hand, len(run.script))
    run.world.run()
    for rank in run.stage.ranks:
        rank.post_peers()
    run.world.run()


def _report(run: "StressRun") -> None:
    """Have every rank say that what is over is over."""
    from kvd.testing.stress.rank_steps import report_transfer

    for rank in run.stage.ranks:
        for peer in list(rank.peers.values()):
            report_transfer(run, rank, peer, failed=peer.astray, proven=True)
        rank.client.ping()  # with it go the facts that are due


def check_at_rest(run: FinishedRun) -> None:
    """Compare all live units of every rank, its sink and its tables while nothing runs."""
    contents = run.model.contents
    for band in contents.bands:
        virtual = band.places.nonzero()[0]
        words = band.words_of(band.places[virtual])
        tags = band.expected_words(virtual)

        def describe(place: int, name: str = band.name, ids: object = virtual) -> str:
            return f"band {name}, one of ids {ids}"

        for rank in run.ranks:
            rank.check_at_rest(words, tags, describe)
    if contents.sink_is_zero:
        zeros = np.zeros(contents.sink_words.size, dtype=np.int64)
        for rank in run.ranks:
            rank.check_at_rest(contents.sink_words, zeros, lambda place: "the sink")
    for rank in run.ranks:
        rank.client.check_tables()


def empty(run: FinishedRun) -> None:
    """End everybody."""
    scheduler, model = run.scheduler, run.model
    ending = [*model.requests, *model.waiting]
    values = list(model.values)
    scheduler.ask(lambda batch: batch.free(ending))
    if values:
        scheduler.ask(lambda batch: batch.evict(values))
    scheduler.process(scheduler.launched_count)
    scheduler.ask(lambda batch: batch.idle())
    scheduler.send()
    scheduler.send()


def _end_all(run: "StressRun") -> None:
    """End everybody, have all ranks do so, and see that nothing is left; raises StressFailure."""
    empty(run)
    _catch_up(run)
    _check_empty(run)


def _check_empty(run: "StressRun") -> None:
    """Raise StressFailure unless nothing is left of anybody."""
    engine = run.stage.incarnation.engine
    chain = engine.chain
    chain.check()
    engine.requests.holdings.check()
    left = {
        "live units": sum(band.live_units for band in chain.bands),
        "pending units": sum(band.pending_units for band in chain.bands),
        "vacated units": sum(band.vacated_units for band in chain.bands),
        "promised units": sum(chain.promised_units),
        "live requests": engine.requests.live_count,
        "values": len(engine.requests.values.of_number),
        "copies": len(engine.uses.copies.loads) + len(engine.uses.copies.backups),
        "transfers": len(engine.uses.transfers.open),
        "steps in flight": engine.steps.in_flight_count,
    }
    wrong = {what: count for what, count in left.items() if count}
    if wrong:
        raise StressFailure(CheckName.DRAIN, f"everybody has gone, and there are {wrong} left")
    for name, table in (
        ("rows", engine.requests.rows.free.ids().size - run.built.storage.storage.row_count + 1),
    ):
        if table:
            raise StressFailure(CheckName.DRAIN, f"everybody has gone, and {name} are missing")


def serve(run: FinishedRun) -> None:
    """Serve a request that fits an empty arena; raises StressFailure if it is not served."""
    scheduler, model, limits = run.scheduler, run.model, run.scheduler.limits
    number = model.take_number("request")
    new_tokens = min(SERVED_TOKENS, limits.context_tokens - 1)
    program = run.program
    prompt = servable_prompt_tokens(program.shape, overlap=program.overlap, new_tokens=new_tokens)

    def ask(batch: Batch) -> None:
        batch.admit([number], prompt_tokens=[prompt], new_tokens_max=[new_tokens])

    scheduler.ask(ask)
    scheduler.send()
    request = model.requests.get(number)
    if request is None or request.new_tokens != new_tokens:
        raise StressFailure(
            CheckName.LIVENESS,
            f"a request of {prompt} prompt tokens is not admitted to an empty arena",
        )
    most = prompt + request.new_tokens
    for _ in range(SERVED_BATCHES_MAX):
        if request.computed_tokens == most:
            return
        # Only the prompt comes in chunks: what is generated was priced a token at a time.
        tokens = max(1, min(prompt - request.tokens, request.chunk_tokens))
        before = request.tokens
        scheduler.ask(lambda batch, tokens=tokens: batch.take([number], tokens))
        scheduler.send()
        if request.tokens != before + tokens:
            raise StressFailure(
                CheckName.LIVENESS,
                f"request {number} was admitted for {most} tokens, has {before}, and is refused "
                f"{tokens} more in an arena of its own",
            )
        scheduler.prepare_launch()
        scheduler.open_launch(OpenLaunch((number,), (number,), standing=False, silent=False))
        scheduler.close_launch()
        scheduler.ask(lambda batch, tokens=tokens: batch.advance([number], tokens))
        scheduler.process(1)
        scheduler.send()
    raise StressFailure(CheckName.LIVENESS, f"request {number} is not served")
