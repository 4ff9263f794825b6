"""Each check of the harness can fail: something is broken by hand, and that very check says so."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvd.alloc.chain import ChainAllocator
from kvd.errors import StressFailure
from kvd.testing.stress.contents import Indices
from kvd.testing.stress.finish import check_empty, serve
from kvd.testing.stress.program import (
    Admit,
    AnyStep,
    Backup,
    Hold,
    Insert,
    Launch,
    Play,
    Post,
    Process,
    Program,
    Publish,
    Record,
    Relief,
    Rest,
    Send,
)
from kvd.testing.stress.run import StressRun
from kvd_client.cursor import Cursor
from kvd_client.launch import Step as LaunchStep
from kvd_proto.outcomes import Move, Outcome, Resolved

SHAPE = "state-window-full"
FIRST = (Admit(prompt_tokens=9, take_tokens=5), Send(), Launch(), Record(), Send(), Rest())
"""A request whose first tokens a forward has written on all ranks, and nothing runs."""
AGAIN = (Launch(), Record(), Rest())


class Silent:
    """Stands in for a second opinion that is not asked."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return something that says nothing, whatever is asked for."""
        return _say_nothing


def _say_nothing(*told: object, **more: object) -> None:
    """Say nothing."""


@pytest.fixture
def run() -> Iterator[StressRun]:
    """Return a run with one request that ran once; the reference allocator stays silent."""
    stress = StressRun(Program(shape=SHAPE, seed_index=1, overlap=True))
    silent = Silent()
    stress.oracle = silent  # type: ignore[assignment]
    play(stress, FIRST)
    yield stress
    stress.close()


def play(run: StressRun, steps: tuple[AnyStep, ...]) -> None:
    for step in steps:
        run.play(step)


def fails(run: StressRun, *steps: AnyStep) -> str:
    """Return the check that fails while steps are played."""
    with pytest.raises(StressFailure) as caught:
        play(run, steps)
    return caught.value.check


def page_words(run: StressRun, *, written: bool) -> Indices:
    """Return words of the arena that the request wrote, or that it has and did not write."""
    band = run.model.contents.owner
    virtual = band.places.nonzero()[0]
    words, tags = band.words_of(band.places[virtual]), band.expected_words(virtual)
    return words[(tags > 0) if written else (tags == 0)]


# ---- bytes --------------------------------------------------------------------------------------


def test_lost_bytes_are_a_payload(run: StressRun) -> None:
    run.ranks[1].words[page_words(run, written=True)[0]] = 0

    assert fails(run, *AGAIN) == "stress.payload"


def test_lost_bytes_are_found_at_rest(run: StressRun) -> None:
    run.ranks[0].words[page_words(run, written=True)[0]] = 0

    assert fails(run, Rest()) == "stress.payload"


def test_bytes_before_their_owner_wrote_any_are_a_zeroing(run: StressRun) -> None:
    run.ranks[1].words[page_words(run, written=False)[0]] = 1

    assert fails(run, *AGAIN) == "stress.zeroing"


def test_bytes_of_a_later_step_are_no_bytes_of_the_launch(run: StressRun) -> None:
    word = page_words(run, written=True)[0]
    run.ranks[1].words[word] = run.model.contents.newest_tag + 1_000

    assert fails(run, *AGAIN) == "stress.launch_reads"


def test_a_sink_that_holds_something_is_a_payload(run: StressRun) -> None:
    run.ranks[0].words[0] = 5

    assert fails(run, Rest()) == "stress.payload"


def test_a_send_of_other_bytes_is_not_what_was_shipped(run: StressRun) -> None:
    play(run, (Process(), Post(request=True, count=5), Send(), Rest()))
    run.ranks[0].words[page_words(run, written=True)] = 3

    with pytest.raises(StressFailure, match=r"stress\.shipped"):
        run.end()


def test_a_backup_of_other_bytes_is_not_what_was_shipped(run: StressRun) -> None:
    play(run, (Process(), Insert(), Send(), Backup(count=5, bands_count=5), Send(), Rest()))
    run.ranks[1].pools[run.model.contents.owner.index].units[:] = 9

    with pytest.raises(StressFailure, match=r"stress\.shipped"):
        run.end()


def _nothing(step: LaunchStep) -> None:
    """Wait for nothing."""


# ---- order --------------------------------------------------------------------------------------


def test_a_forward_that_waits_for_nothing_races(
    run: StressRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LaunchStep, "_order_forward", _nothing)
    many = (Admit(prompt_tokens=9, take_tokens=7), Send(), Launch(count=7), Record())

    assert fails(run, *many, Play(favour_index=1, actions_count=59), Rest()) == "stress.race"


def test_whoever_waits_for_a_device_to_apply_a_batch_is_found(
    run: StressRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_in = Cursor.take_in

    def slow(cursor: Cursor, *arguments: object) -> object:
        run.run_dry()
        return take_in(cursor, *arguments)  # type: ignore[arg-type]

    play(run, (Launch(), Record()))
    monkeypatch.setattr(Cursor, "take_in", slow)

    assert fails(run, Send()) == "stress.host_wait"


# ---- places -------------------------------------------------------------------------------------


def test_a_table_that_says_something_else_is_a_map(run: StressRun) -> None:
    rank = run.ranks[1]
    region = run.built.storage.storage.region
    owner = run.model.contents.owner
    page = int(owner.places.nonzero()[0][0])
    rank.cells[region.band_maps[owner.index].offset_bytes // 4 + page] += 1

    assert fails(run, *AGAIN) == "stress.maps"


def test_units_that_share_bytes_are_not_disjoint(
    run: StressRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = run.model.contents
    cells_count = contents.plan.arena_bytes // contents.cell_bytes
    monkeypatch.setattr(contents, "_used", np.ones(cells_count, dtype=np.int8))

    assert fails(run, Admit(prompt_tokens=9, take_tokens=7), Send()) == "stress.disjoint"


def test_a_move_of_what_a_peer_knows_is_pinned(run: StressRun) -> None:
    play(run, (Process(), Hold(count=5), Send(), Publish(), Send()))
    owner = run.model.contents.owner
    units = owner.places[owner.places.nonzero()[0]][:1]
    moved = Outcome(
        Resolved((), 0),
        ((Move(owner.index, 0, 0),),),  # type: ignore[arg-type]
        (1,),
        units.astype("<i4").tobytes(),
    )

    with pytest.raises(StressFailure, match=r"stress\.pinned"):
        run.model.note_own(moved)


# ---- decisions ----------------------------------------------------------------------------------


def test_a_twin_that_decides_otherwise_diverges(run: StressRun) -> None:
    free_ids = run.twin.engine.chain.owner.free_ids
    assert free_ids is not None
    free_ids.take(1)

    assert fails(run, Admit(prompt_tokens=9, take_tokens=7), Send()) == "stress.divergence"


def test_wrong_use_that_nobody_meant_is_the_client(run: StressRun) -> None:
    run.scheduler.ask(lambda batch: batch.free([1 << 40]))

    assert fails(run, Send()) == "stress.client"


def test_an_engine_that_raises_is_the_engine(
    run: StressRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(chain: ChainAllocator, demand: object) -> bool:
        raise IndexError("broken by hand")

    monkeypatch.setattr(ChainAllocator, "fits", broken)

    assert fails(run, Relief(units=(1, 1, 1)), Send()) == "stress.engine"


# ---- the end ------------------------------------------------------------------------------------


def test_what_is_left_does_not_drain(run: StressRun) -> None:
    with pytest.raises(StressFailure, match=r"stress\.drain"):
        check_empty(run)


def test_an_empty_arena_that_admits_nobody_is_not_alive(run: StressRun) -> None:
    rows = run.stage.incarnation.engine.requests.rows
    rows.free.take(rows.free.ids().size)
    run.twin = Silent()  # type: ignore[assignment]

    with pytest.raises(StressFailure, match=r"stress\.liveness"):
        serve(run)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_in_which_nothing_is_broken_is_clean(seed: int) -> None:
    stress = StressRun(Program(shape=SHAPE, seed_index=seed, overlap=True))
    play(stress, (*FIRST, *AGAIN))
    stress.end()
    stress.close()
