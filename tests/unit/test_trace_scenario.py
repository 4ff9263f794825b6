"""Scenario files: read, refused, and played against what is written in them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvd.engine.snap import StageSnap
from kvd.errors import FileError
from kvd.trace.adapter import BatchEvent, FactEvent
from kvd.trace.play import Surprise, play
from kvd.trace.scenario import (
    configurations_of,
    read_scenario,
    script_of,
)
from kvd.trace.stage import StageAdapter
from kvd_proto.memory import Lifetime
from tests.unit.trace_parts import Altered, damaged

BANDS = [
    {"name": "state", "lifetime": "state", "unit_bytes": 10},
    {"name": "window", "lifetime": "window", "unit_bytes": 6, "window_tokens": 8},
    {"name": "full", "lifetime": "full", "unit_bytes": 5},
]
STAGE: dict[str, Any] = {
    "arena_bytes": 400,
    "sink_bytes": 10,
    "page_tokens": 4,
    "context_tokens": 64,
    "row_count": 8,
    "chunk_tokens": 16,
    "bands": BANDS,
}
ADMIT = {
    "type": "admit",
    "requests": [[1, 1]],
    "prompt_tokens": [16],
    "new_tokens_max": [4],
    "take_tokens": [16],
}


def write(folder: Path, *steps: object, stage: object = STAGE, **changes: object) -> Path:
    """Write a scenario and its configuration; return the scenario's path."""
    scenario: dict[str, Any] = {
        "format": "kvd.scenario/1",
        "name": "some",
        "says": "Something.",
        "configurations": ["one"],
        "steps": list(steps),
    }
    path = folder / "some.json"
    path.write_text(json.dumps(scenario | changes))
    (folder / "configurations.json").write_text(json.dumps({"one": stage}))
    return path


def played(path: Path) -> Surprise | None:
    """Play a scenario on this build."""
    scenario = read_scenario(path)
    return play(scenario, configurations_of(path, scenario)["one"], StageAdapter())


def refusal(path: Path) -> str | None:
    """Return why a scenario is refused; None for one that is played, whatever comes of it."""
    try:
        played(path)
    except FileError as error:
        return error.message
    return None


def test_a_configuration_is_a_stage_of_these_bands(tmp_path: Path) -> None:
    path = write(tmp_path, {"op": ADMIT})
    scenario = read_scenario(path)
    shape = configurations_of(path, scenario)["one"].shape
    assert [(band.name, band.lifetime) for band in shape.bands] == [
        ("state", Lifetime.STATE),
        ("window", Lifetime.WINDOW),
        ("full", Lifetime.FULL),
    ]
    assert [band.unit_index_min for band in shape.bands] == [1, 2, 2]
    assert [band.unit_index_end_count for band in shape.bands] == [40, 66, 80]
    assert (shape.row_count, shape.row_pages) == (9, 17)
    assert (shape.virtual_page_count, shape.virtual_slot_count) == (80, 40)


def test_configurations_may_stand_one_folder_above(tmp_path: Path) -> None:
    path = write(tmp_path, {"op": ADMIT})
    below = tmp_path / "below"
    below.mkdir()
    moved = path.rename(below / path.name)
    assert played(moved) is None


def test_names_of_bands_become_places(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"op": {"type": "relief", "demand_units": {"full": 3}}},
        {"op": {"type": "hold", "transfer": 1, "virtual": {"window": [[2, 1]]}}},
        {"op": {"type": "load_name", "load": 1, "band": "window", "virtual": [[1, 2]]}},
        {"fact": {"type": "copy_ended", "copy": 4}, "rank": 0},
        {"fits": {"window": 1}, "expect": True},
    )
    scenario = read_scenario(path)
    events = [one.event for one in script_of(scenario, configurations_of(path, scenario)["one"])]
    args = [one.operations[0].args for one in events if isinstance(one, BatchEvent)]
    assert args == [
        {"demand_units": [0, 0, 3]},
        {"transfer": 1, "virtual": [[], [[2, 1]], []]},
        {"load": 1, "band": 1, "virtual": [[1, 2]]},
    ]
    assert events[3] == FactEvent(rank=0, type="copy_ended", args={"copy": 4})
    assert len(events) == 4


GOOD: tuple[dict[str, Any], ...] = (
    {"op": ADMIT, "expect": {"verdicts": ["fits"], "pages": 4}, "effects": {"waits": []}},
    {"bands": {"full": {"live_units": 4}, "window": {"span": [31, 35]}}},
    {"fits": {"full": 50}, "expect": True},
    {"op": {"type": "free", "requests": [[9, 1]]}, "expect": {"answer": "failed"}, "pure": True},
    {
        "batch": [{"type": "advance", "requests": [[1, 1]], "tokens": 16}, {"type": "idle"}],
        "expect": [{"units": [0, 2, 0]}, {"answer": "done"}],
    },
    {
        "op": {"type": "insert", "value_id": 1, "request": 1},
        "expect": {"answer": "done"},
    },
    {
        "batch": [
            {
                "type": "backup_submit",
                "backup": 1,
                "virtual": {"full": [[1, 1]]},
                "host_units": {"full": [0]},
            },
            {"type": "idle"},
        ],
    },
    {"fact": {"type": "copy_ended", "copy": 1}, "expect": {"copies": [1]}},
    {"fact": {"type": "copy_ended", "copy": 1}, "expect": None},
)


def test_what_is_as_expected_is_no_surprise(tmp_path: Path) -> None:
    assert played(write(tmp_path, *GOOD)) is None


@pytest.mark.parametrize(
    ("place", "changed", "path", "got"),
    [
        (0, {"expect": {"pages": 5}}, "pages", 4),
        (0, {"expect": {"verdicts": ["wait"]}}, "verdicts[0]", "fits"),
        (0, {"expect": {"verdicts": ["fits", "fits"]}}, "verdicts[1]", "nothing"),
        (0, {"expect": {"colour": "red"}}, "colour", "nothing"),
        (0, {"pure": True}, "state.request_count", 1),
        (0, {"effects": {"zeroed": {"full": 4}}}, "effects.zeroed.window", 4),
        (0, {"effects": {"waits": ["step 1"]}}, "effects.waits[0]", "nothing"),
        (1, {"bands": {"full": {"live_units": 3}}}, "full.live_units", 4),
        (1, {"bands": {"window": {"span": [31, 36]}}}, "window.span[1]", 35),
        (2, {"expect": False}, "", True),
        (4, {"expect": [{"units": [0, 3, 0]}, {}]}, "[0].units[1]", 2),
        (4, {"expect": [{}, {"answer": "no"}]}, "[1].answer", "done"),
        (7, {"expect": None}, "", {"answer": "released", "copies": [1]}),
        (7, {"expect": {"copies": [2]}}, "copies[0]", 1),
        (8, {"expect": {"copies": [1]}}, "", "nothing"),
    ],
)
def test_what_is_not_as_expected_is_told_with_step_and_path(
    place: int, changed: dict[str, Any], path: str, got: object, tmp_path: Path
) -> None:
    steps: list[dict[str, Any]] = [dict(step) for step in GOOD]
    steps[place] = {key: value for key, value in steps[place].items() if key != "pure"} | changed
    surprise = played(write(tmp_path, *steps))
    assert surprise is not None
    assert (surprise.step_index, surprise.path, surprise.got) == (place, path, got)
    assert f"step {place + 1}, " in str(surprise)


def test_what_an_allocator_does_not_know_is_not_asserted(tmp_path: Path) -> None:
    class Modest(Altered):
        """Knows no operation, no state and no layout."""

        def snap(self) -> StageSnap | None:
            return None

        def fits(self, units: tuple[int, ...]) -> bool | None:
            return None

    path = write(tmp_path, *GOOD[:5])
    scenario = read_scenario(path)

    def unknown(_: int, decision: Any) -> Any:
        return type(decision)(source=decision.source, type=decision.type, answer={})

    configuration = configurations_of(path, scenario)["one"]
    assert play(scenario, configuration, Modest(unknown)) is None


FREE_NOBODY = {"type": "free", "requests": [[9, 1]]}
IDLE = {"type": "idle"}


@pytest.mark.parametrize(
    ("step", "path", "answer"),
    [
        ({"op": FREE_NOBODY}, "", "failed"),
        ({"op": FREE_NOBODY, "expect": {}}, "", "failed"),
        ({"op": FREE_NOBODY, "expect": {"code": "UNKNOWN_REQUEST"}}, "", "failed"),
        ({"op": FREE_NOBODY, "pure": True}, "", "failed"),
        ({"batch": [IDLE, FREE_NOBODY]}, "[1]", "failed"),
        ({"batch": [IDLE, FREE_NOBODY], "expect": [{"answer": "done"}, {}]}, "[1]", "failed"),
        ({"batch": [FREE_NOBODY, IDLE], "expect": [{"answer": "failed"}, {}]}, "[1]", "not_run"),
    ],
)
def test_what_failed_or_was_not_run_without_an_expect_is_a_surprise(
    step: dict[str, Any], path: str, answer: str, tmp_path: Path
) -> None:
    surprise = played(write(tmp_path, {"op": ADMIT}, step))
    assert surprise is not None
    assert isinstance(surprise.got, dict)
    assert (surprise.step_index, surprise.path) == (1, path)
    assert surprise.got["answer"] == answer
    assert "expected 'no failure, because expect names none'" in str(surprise)


def test_what_was_skipped_without_an_expect_is_a_surprise(tmp_path: Path) -> None:
    admit = {"type": "admit", "prompt_tokens": [4] * 8, "new_tokens_max": [4] * 8}
    ninth = {**ADMIT, "requests": [[9, 1]], "prompt_tokens": [4], "take_tokens": [4]}
    batch = [ninth, {"type": "take", "requests": [[9, 1]], "tokens": 1}]
    steps = [{"op": {**admit, "requests": [[1, 8]], "take_tokens": [4] * 8}}, {"batch": batch}]
    surprise = played(write(tmp_path, *steps))
    assert surprise is not None
    assert surprise.path == "[1]"
    assert surprise.got == {"answer": "skipped", "request": 9}
    announced = {"batch": batch, "expect": [{}, {"answer": "skipped"}]}
    assert played(write(tmp_path, steps[0], announced)) is None


def test_a_batch_may_fail_where_its_expect_announces_it(tmp_path: Path) -> None:
    step = {
        "batch": [FREE_NOBODY, IDLE],
        "expect": [{"answer": "failed"}, {"answer": "not_run"}],
        "pure": True,
    }
    assert played(write(tmp_path, step)) is None


@pytest.mark.parametrize("expect", [{}, {"expect": None}, {"expect": {"copies": [7]}}])
def test_a_fact_that_the_stage_refuses_is_a_surprise_at_its_step(
    expect: dict[str, Any], tmp_path: Path
) -> None:
    step = {"fact": {"type": "copy_ended", "copy": 7}, **expect}
    surprise = played(write(tmp_path, {"op": ADMIT}, step))
    assert surprise is not None
    assert str(surprise).startswith("step 2, copy_ended: ")
    assert isinstance(surprise.got, dict)
    assert surprise.got["answer"] == "error"


WRONG_FILES: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {"format": "kvd.scenario/7"}, "has format 'kvd.scenario/7'"),
    ((), {"format": "kvd.scenario/7", "new": 1}, "has format 'kvd.scenario/7'"),
    ((), {"format": 7}, "is no scenario: Expected `str`"),
    ((), {"steps": "none"}, "is no scenario: Expected `array`"),
    (({"op": ADMIT},), {"configurations": ["two"]}, "names configuration 'two'"),
    (({"op": ADMIT},), {"titel": ""}, "unknown field `titel`; there are format, name, says, cases"),
    (({"op": ADMIT},), {"ranks_count": 0}, "Expected `int` >= 1 - at `$.ranks_count`"),
]


@pytest.mark.parametrize(("steps", "changes", "said"), WRONG_FILES)
def test_a_scenario_that_is_none_is_one_error_that_names_the_file(
    steps: tuple[object, ...], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path, *steps, **changes)
    with pytest.raises(FileError) as raised:
        played(path)
    assert raised.value.message.startswith(f"{path} ")
    assert said in raised.value.message


HOLD = {"type": "hold", "transfer": 1}
WRONG_STEPS: list[tuple[object, str]] = [
    ({}, "one of op, batch, fact, fits and bands is needed; it has none of them"),
    ({"op": ADMIT, "fits": {"full": 1}}, "is needed; it has op and fits"),
    ({"op": ADMIT, "expects": {}}, "unknown field `expects`; there are op, batch, fact, fits"),
    ({"op": "idle"}, "Expected `object | null`, got `str` - at `$.op`"),
    (7, "Expected `object`, got `int`"),
    ({"op": IDLE, "program": -1}, "Expected `int` >= 0 - at `$.program`"),
    ({"op": IDLE, "rank": 1}, "rank goes with fact, not with op"),
    ({"fact": {"type": "rank_failed"}, "rank": 1}, "rank is 1; the ranks are 0 to 0"),
    ({"fits": {"full": 1}, "expect": True, "program": 1}, "program goes with op and batch"),
    ({"fits": {"full": 1}, "expect": True, "pure": True}, "pure and effects go with op, batch"),
    ({"fits": {"full": 1}}, "expect is left out; with fits it has to be true or false"),
    ({"fits": {"full": 1}, "expect": 1}, "expect is 1; with fits it has to be true or false"),
    ({"fits": {"full": "1"}, "expect": True}, "fits has '1' for 'full'; it has to be a count"),
    ({"fits": {"ful": 1}, "expect": True}, "there is no band 'ful'; there are state, window, full"),
    ({"bands": {"ful": {}}}, "there is no band 'ful'; there are state, window, full"),
    ({"bands": {"full": {}}, "expect": {}}, "with bands it has to be left out"),
    ({"op": IDLE, "expect": []}, "expect is []; with op it has to be an object"),
    ({"op": IDLE, "expect": None}, "expect is None; with op it has to be an object"),
    ({"fact": {"type": "step_aborted", "step": 1}, "expect": 1}, "it has to be an object, or null"),
    ({"batch": [IDLE], "expect": [{}, {}]}, "it has to be a list of 1 objects, one for each"),
    ({"batch": [IDLE], "expect": [1]}, "it has to be a list of 1 objects, one for each"),
    ({"op": IDLE, "effects": {"moves": {}}}, "effects has 'moves'; there are moved, zeroed, waits"),
    ({"op": {"requests": [[1, 1]]}}, "an operation needs its type: admit, standing, take,"),
    ({"op": {"type": "relief", "demand_units": {"ful": 1}}}, "there is no band 'ful'"),
    ({"op": {"type": "fly"}}, "'fly' is no operation; there are admit, standing, take,"),
    ({"op": {"type": 7}}, "7 is no operation; there are admit,"),
    ({"op": {"type": "batch_end"}}, "batch_end ends every batch by itself; leave it out"),
    ({"op": {"type": "copy_ended", "copy": 1}}, "'copy_ended' is no operation"),
    ({"fact": {"type": "take"}}, "'take' is no fact; there are step_aborted, rank_failed"),
    ({"op": {"type": "take", "token": 1}}, "take has no field 'token'; it has requests, tokens"),
    ({"op": {"type": "take", "tokens": "1"}}, "take cannot be read: Expected `int`, got `str`"),
    (
        {"op": {"type": "take", "tokens": 1 << 64}},
        "take has a number that does not fit into 64 bits",
    ),
    ({"op": {"type": "free", "requests": [1]}}, "it has to be a list of runs [first, count]"),
    ({"op": {"type": "free", "requests": [[1]]}}, "it has to be a list of runs [first, count]"),
    ({"op": {"type": "free", "requests": [[1, 1.5]]}}, "it has to be a list of runs"),
    ({"op": {**ADMIT, "prompt_tokens": [1.5]}}, "it has to be a list of whole numbers"),
    ({"op": {**ADMIT, "prompt_tokens": ["5"]}}, "it has to be a list of whole numbers"),
    ({"op": {**ADMIT, "prompt_tokens": 5}}, "it has to be a list of whole numbers"),
    ({"op": {**HOLD, "virtual": "ab"}}, "it has to be a list with an entry for each band"),
    ({"op": {**HOLD, "virtual": {"full": 1}}}, "it has to be a list of runs [first, count]"),
]


@pytest.mark.parametrize(("step", "said"), WRONG_STEPS)
def test_a_step_that_makes_no_sense_is_one_error_that_names_file_and_step(
    step: object, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path, {"op": ADMIT}, step)
    with pytest.raises(FileError) as raised:
        played(path)
    assert raised.value.message.startswith(f"{path}, step 2")
    assert said in raised.value.message
    assert "\n" not in raised.value.message


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), 1 << 64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    step=st.sampled_from([*GOOD, {"op": {**HOLD, "virtual": {"full": [[1, 1]]}}}]),
    place=st.integers(0, 20),
    value=PLAIN,
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_step_with_another_value_anywhere_is_played_or_refused_by_name(
    step: dict[str, Any], place: int, value: object, tmp_path: Path
) -> None:
    try:
        path = write(tmp_path, {"op": ADMIT}, damaged(step, place, value))
    except (ValueError, UnicodeEncodeError):
        return  # what JSON does not have
    message = refusal(path)
    assert message is None or message.startswith(f"{path}, step 2")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bands": []}, "bands is empty; there has to be one or more"),
        ({"bands": BANDS[:2]}, "then one full, which owns the pages"),
        ({"bands": [BANDS[1], BANDS[0], BANDS[2]]}, "at most one state comes first"),
        ({"bands": [{**BANDS[2], "unit_bytes": 0}]}, "a unit has at least one byte"),
        ({"bands": [{**BANDS[1], "window_tokens": 0}, BANDS[2]]}, "window_tokens is 0"),
        ({"sink_bytes": 401}, "a sink of 401 bytes"),
        ({"page_tokens": 0}, "page_tokens is 0; it has to be 1 or more"),
        ({"row_count": 0}, "row_count is 1; it has to be 2 to"),
        ({"colour": 1}, "unknown field `colour`; there are arena_bytes, sink_bytes"),
    ],
)
def test_a_configuration_that_makes_no_stage_is_one_error(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError) as raised:
        played(write(tmp_path, {"op": ADMIT}, stage=STAGE | changes))
    assert raised.value.message.startswith(f"{tmp_path}/configurations.json, configuration 'one': ")
    assert said in raised.value.message


@pytest.mark.parametrize("lacking", ["steps", "configurations"])
def test_a_scenario_that_says_nothing_is_refused(lacking: str, tmp_path: Path) -> None:
    path = write(tmp_path, {"op": ADMIT})
    form = json.loads(path.read_bytes())
    path.write_text(json.dumps({**form, lacking: []}))

    with pytest.raises(FileError, match=f"has no {lacking}"):
        read_scenario(path)
