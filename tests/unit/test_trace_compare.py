"""The first difference of two allocators, and what they last had in common."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from kvd.errors import InvariantError, WorkloadError
from kvd.trace.adapter import Decision, Event
from kvd.trace.compare import MISSING, Comparison, compare, first_difference
from kvd.trace.stage import StageAdapter
from kvd.trace.text import comparison_form, comparison_lines
from tests.unit.trace_parts import Altered, recorded, script, traced

DATA = traced()
Change = Callable[[int, Decision], Decision | None]


def against(change: Change, *, answers_only: bool = False, snap_every: int = 0) -> Comparison:
    """Compare this build with one whose answers are changed."""
    return compare(
        lambda: script(DATA),
        StageAdapter,
        lambda: Altered(change),
        answers_only=answers_only,
        snap_every=snap_every,
    )


def at(number: int, **changes: object) -> Change:
    return lambda count, decision: replace(decision, **changes) if count == number else decision


def test_nothing_is_different_about_the_same() -> None:
    result = against(lambda _, decision: decision, snap_every=1)
    assert result.divergence is None
    assert result.snap_count >= result.event_count - 1


@pytest.mark.parametrize("number", [1, 2, 30, 60])
def test_the_first_difference_is_told_with_its_position_and_its_path(number: int) -> None:
    result = against(at(number, answer={"answer": "something else"}, digest="0"))
    found = result.divergence
    assert found is not None
    assert (found.position, found.path, found.right) == (number, "answer.answer", "something else")
    assert found.left_decision is not None
    assert result.decision_count == number - 1


def test_a_difference_that_no_word_tells_is_that_of_the_digest() -> None:
    found = against(at(9, digest="0" * 16)).divergence
    assert found is not None
    assert (found.path, found.right) == ("digest", "0" * 16)


def test_the_last_common_state_is_the_one_just_before() -> None:
    result = against(at(60, digest="0" * 16))
    assert result.divergence is not None
    assert result.state is not None
    assert result.state.event_count == result.divergence.event_index
    assert result.state.name == "both"
    assert 0 < 60 - result.state.position < 10


def test_a_recording_that_knows_no_state_there_leaves_the_other_one_to_tell_it() -> None:
    result = compare(lambda: script(DATA), recorded(DATA), lambda: Altered(at(60, digest="0")))
    assert result.state is not None
    assert result.state.name == "altered"
    assert result.divergence is not None
    assert result.state.event_count == result.divergence.event_index


def test_states_that_differ_while_all_answers_are_equal_are_the_first_difference() -> None:
    class Forgetful(StageAdapter):
        """Gives an id back too often, which shows much later."""

        fed_count = 0

        def feed(self, event: Event) -> list[Decision]:
            decided = list(super().feed(event))
            self.fed_count += 1
            if self.fed_count == 12:
                self.incarnation.engine.chain.owner.promised_units += 1
            return decided

    result = compare(lambda: script(DATA), StageAdapter, Forgetful, snap_every=5)
    found = result.divergence
    assert found is not None
    assert (found.what, found.event_index) == ("snap", 11)
    assert found.path == "bands[3].promised_units"
    assert result.state is not None
    assert result.state.event_count == 11


def test_an_entry_that_one_side_lacks_is_a_difference() -> None:
    found = against(lambda count, decision: None if count == 8 else decision).divergence
    assert found is not None
    assert (found.position, found.left_decision is None) == (8, False)


def test_an_entry_that_one_side_lacks_at_the_end_is_a_difference() -> None:
    last = sum(len(one.decisions) for one in script(DATA))
    found = against(lambda count, decision: None if count == last else decision).divergence
    assert found is not None
    assert (found.position, found.right) == (last, MISSING)


UNITS = {"answer": "refused", "short_units": 77, "obstacle": "mine", "band": "other"}


def test_answers_only_leaves_out_which_units_and_how_much_is_short() -> None:
    def change(_: int, decision: Decision) -> Decision:
        answer = decision.answer
        if answer["answer"] == "refused":
            answer = {**answer, **UNITS}
        return replace(decision, answer=answer, digest="", position=0, outcome=None)

    result = against(change, answers_only=True)
    assert result.divergence is None
    assert result.decision_count > 80
    assert against(change).divergence is not None


def test_answers_only_tells_another_verdict() -> None:
    first = next(
        number
        for number, decision in enumerate(
            (decision for one in script(DATA) for decision in one.decisions), 1
        )
        if decision.type == "admit"
    )
    result = against(
        lambda count, decision: (
            replace(decision, answer={**decision.answer, "verdicts": ["wait", "wait"]})
            if count == first
            else decision
        ),
        answers_only=True,
    )
    assert result.divergence is not None
    assert result.divergence.path == "verdicts[0]"
    assert result.divergence.what.startswith("admit {")


def test_what_a_side_does_not_know_is_counted_and_compared_with_nothing() -> None:
    result = against(
        lambda _, decision: replace(decision, answer={}) if decision.type == "take" else decision,
        answers_only=True,
    )
    assert result.divergence is None
    assert result.unknown_count > 5


def test_an_error_of_one_side_is_its_answer() -> None:
    class Broken(StageAdapter):
        def feed(self, event: Event) -> list[Decision]:
            raise InvariantError("band.counts", "one page too many")

    found = compare(lambda: script(DATA), StageAdapter, Broken).divergence
    assert found is not None
    assert found.right_decision is not None
    assert found.right_decision["answer"]["code"] == "INVARIANT"
    assert "one page too many" in str(found.right_decision)


def test_a_side_that_cannot_play_ends_the_comparison() -> None:
    class Gone(StageAdapter):
        def feed(self, event: Event) -> list[Decision]:
            raise WorkloadError("it is gone")

    with pytest.raises(WorkloadError, match="it is gone"):
        compare(lambda: script(DATA), StageAdapter, Gone)


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": 2}, ("a", 1, 2)),
        ({"a": 1}, {}, ("a", 1, MISSING)),
        ({}, {"b": None}, ("b", MISSING, None)),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ("a[1].b", 2, 3)),
        ([1, 2], [1], ("[1]", 2, MISSING)),
        ((1, 2), [1, 2], None),
        ({"a": 1, "b": 2}, {"b": 3, "a": 4}, ("a", 1, 4)),
    ],
)
def test_the_first_path_that_differs(left: object, right: object, found: object) -> None:
    assert first_difference(left, right) == found  # type: ignore[arg-type]


def test_a_difference_is_told_in_lines_and_as_a_document() -> None:
    result = against(at(60, answer={"answer": "something else"}, digest="0"))
    lines = list(comparison_lines(result, left="mine", right="yours"))
    assert lines[0].startswith("DIFFERENT at event ")
    assert any(line.endswith("(mine)") for line in lines)
    assert any('"something else"' in line and line.endswith("(yours)") for line in lines)
    assert any("last common state, behind event" in line for line in lines)
    form = comparison_form(result)
    assert form["same"] is False
    assert form["divergence"]["position"] == 60
    assert form["last_common_state"]["snap"]["digest"]
    same = against(lambda _, decision: decision)
    assert next(comparison_lines(same, left="a", right="b")).startswith("same: ")
    assert comparison_form(same)["divergence"] is None
