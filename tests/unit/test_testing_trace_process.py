"""Allocators in processes of their own, over two pipes."""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvd.errors import FileError, OperationError, WorkloadError
from kvd.testing import trace_process
from kvd.testing.trace_process import ProcessAdapter, tree_adapter
from kvd.trace.adapter import UNKNOWN, Asked, BatchEvent, FactEvent
from kvd.trace.compare import compare
from kvd.trace.process import Answer, FeedAsk, FitsAsk, SnapAsk, StartAsk, encode_line, serve
from kvd.trace.stage import StageAdapter
from tests.unit.trace_parts import script, traced

TREE = Path(__file__).parents[2]
HEAD = script(traced()).head
IDLE = BatchEvent(program=0, operations=(Asked(type="idle"), Asked(type="batch_end")))


def answers(*asks: StartAsk | FeedAsk | SnapAsk | FitsAsk) -> list[Answer]:
    """Return what this build answers over pipes."""
    said = io.BytesIO()
    serve(StageAdapter(), io.BytesIO(b"".join(map(encode_line, asks))), said)
    return [msgspec.json.decode(line, type=Answer) for line in said.getvalue().splitlines()]


def test_every_question_has_one_answer_in_order() -> None:
    start, feed, snap, fits, too_much = answers(
        StartAsk(head=HEAD),
        FeedAsk(event=IDLE),
        SnapAsk(),
        FitsAsk(units=(0, 0, 0, 1)),
        FitsAsk(units=(0, 0, 0, 1000)),
    )
    assert start.decisions == ()
    assert [one.answer for one in feed.decisions] == [{"answer": "done"}] * 2
    assert snap.snap is not None
    assert (fits.fits, too_much.fits) == (True, False)


def test_what_cannot_be_decided_is_an_error_and_the_next_is_asked() -> None:
    wrong, right = answers(
        StartAsk(head=HEAD),
        FeedAsk(event=FactEvent(rank=0, type="copy_ended", args={"copy": 9})),
        FeedAsk(event=IDLE),
    )[1:]
    assert wrong.error is not None
    assert "copy 9 was never submitted" in wrong.error.message
    assert right.error is None


@pytest.mark.slow
def test_another_source_tree_decides_the_same() -> None:
    def other() -> ProcessAdapter:
        return tree_adapter(TREE, environment={"PATH": os.environ["PATH"]})

    data = traced()
    result = compare(lambda: script(data), StageAdapter, other, snap_every=10)
    assert result.divergence is None
    assert result.decision_count > 80
    assert result.snap_count > 4


def test_a_folder_that_is_no_source_tree_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is no source tree of kvd that can replay traces"):
        tree_adapter(tmp_path, environment={})


FOREIGN = """
import json, sys
live = 0
for line in sys.stdin:
    ask = json.loads(line)
    if ask["ask"] != "feed":
        print("{}", flush=True)
        continue
    decisions = []
    for one in ask["event"].get("operations", ()):
        known = {"batch_end": {"answer": "done"}, "idle": {"answer": "done"}}
        answer = known.get(one["type"], {})
        decisions.append({"source": "op", "type": one["type"], "answer": answer})
    print(json.dumps({"decisions": decisions}), flush=True)
"""


def run(program: str, name: str = "run:other") -> ProcessAdapter:
    """Return a program as an allocator."""
    return ProcessAdapter((sys.executable, "-c", program), name=name, environment={})


@pytest.fixture
def adapters() -> Iterator[list[ProcessAdapter]]:
    """Give a list whose adapters are closed at the end."""
    made: list[ProcessAdapter] = []
    yield made
    for adapter in made:
        adapter.close()


def test_an_allocator_that_knows_little_is_compared_in_what_it_knows() -> None:
    data = traced()
    result = compare(lambda: script(data), StageAdapter, lambda: run(FOREIGN), answers_only=True)
    assert result.divergence is None
    assert result.unknown_count > 50
    assert result.decision_count >= result.event_count - 1
    assert result.snap_count == 0


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(3)", "run:other ended with exit code 3"),
        ("import sys; sys.exit('no licence')", "no licence"),
        ("print('hello', flush=True); input()", "run:other answered b'hello', which is no answer"),
        ("print('{\"decisions\": 7}', flush=True); input()", "which is no answer"),
    ],
)
def test_a_program_that_does_not_answer_is_one_error(
    program: str, said: str, adapters: list[ProcessAdapter]
) -> None:
    adapters.append(run(program))
    with pytest.raises(WorkloadError) as raised:
        adapters[0].start(HEAD)
    assert said in raised.value.message


def test_a_program_that_is_silent_is_given_up(
    adapters: list[ProcessAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_process, "ANSWER_WAIT_S", 0.05)
    adapters.append(run("import signal; signal.pause()"))
    with pytest.raises(WorkloadError, match="run:other did not answer within"):
        adapters[0].start(HEAD)


def test_a_program_that_is_not_there_is_named(adapters: list[ProcessAdapter]) -> None:
    adapters.append(ProcessAdapter(("/no/such",), name="run:/no/such", environment={}))
    with pytest.raises(WorkloadError, match="run:/no/such cannot be started: No such file"):
        adapters[0].start(HEAD)


def test_an_error_of_the_other_side_keeps_its_code(adapters: list[ProcessAdapter]) -> None:
    told = '{"error": {"code": "IN_USE", "message": "busy"}}'
    adapters.append(run(f"input(); print('{told}', flush=True); input()"))
    with pytest.raises(OperationError, match="busy") as raised:
        adapters[0].start(HEAD)
    assert raised.value.code == "IN_USE"


def test_an_answer_may_be_unknown() -> None:
    assert UNKNOWN == {}
