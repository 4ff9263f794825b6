"""Scenario files: read, refused, and played against what is written in them."""

import json
from pathlib import Path
from typing import Any

import pytest

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
from tests.unit.trace_parts import Altered

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
        (4, {"expect": [{"units": [0, 3, 0]}]}, "[0].units[1]", 2),
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


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {"format": "kvd.scenario/7"}, "has format 'kvd.scenario/7'"),
    (({},), {}, "step 1: one of op, batch, fact, fits and bands is needed"),
    (({"op": ADMIT, "fits": {"full": 1}},), {}, "step 1: one of op"),
    (({"op": ADMIT, "expects": {}},), {}, "is no scenario: Object contains unknown field"),
    ((), {"steps": "none"}, "is no scenario: Expected `array`"),
    (({"op": ADMIT},), {"configurations": ["two"]}, "names configuration 'two'"),
    (({"op": {"requests": [[1, 1]]}},), {}, "an operation without its type"),
    (({"op": {"type": "relief", "demand_units": {"ful": 1}}},), {}, "there is no band 'ful'"),
    (({"bands": {"ful": {}}},), {}, "there is no band 'ful'; there are state, window, full"),
    (({"op": {"type": "fly"}},), {}, "'fly' is no operation"),
    (({"op": {"type": "take", "token": 1}},), {}, "take has no field 'token'"),
]


@pytest.mark.parametrize(("steps", "changes", "said"), WRONG)
def test_a_scenario_that_makes_no_sense_is_one_error(
    steps: tuple[object, ...], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError) as raised:
        played(write(tmp_path, *steps, **changes))
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bands": []}, "its last band has to be full attention"),
        ({"bands": BANDS[:2]}, "its last band has to be full attention"),
        ({"bands": [BANDS[1], BANDS[0], BANDS[2]]}, "states come first"),
        ({"bands": [{**BANDS[2], "unit_bytes": 0}]}, "a unit has at least one byte"),
        ({"sink_bytes": 401}, "a sink of 401 bytes"),
        ({"colour": 1}, "unknown field `colour`"),
    ],
)
def test_a_configuration_that_makes_no_stage_is_one_error(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError) as raised:
        played(write(tmp_path, {"op": ADMIT}, stage=STAGE | changes))
    assert said in raised.value.message


@pytest.mark.parametrize("lacking", ["steps", "configurations"])
def test_a_scenario_that_says_nothing_is_refused(lacking: str, tmp_path: Path) -> None:
    path = write(tmp_path, {"op": ADMIT})
    form = json.loads(path.read_bytes())
    path.write_text(json.dumps({**form, lacking: []}))

    with pytest.raises(FileError, match=f"has no {lacking}"):
        read_scenario(path)
