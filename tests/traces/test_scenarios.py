"""Public cases as scenarios: answers are written in each, for every configuration it names."""

import re
from pathlib import Path

import pytest

from kvd.trace.compare import compare
from kvd.trace.play import play
from kvd.trace.scenario import Configuration, Scenario, script_of
from kvd.trace.stage import StageAdapter
from tests.traces.scenario_files import FILES, NAMES, PAIRS, SCENARIOS


@pytest.mark.parametrize(("scenario", "name", "configuration"), PAIRS, ids=NAMES)
def test_a_scenario_gives_the_answers_written_in_it(
    scenario: Scenario, name: str, configuration: Configuration
) -> None:
    surprise = play(scenario, configuration, StageAdapter())
    assert surprise is None, f"{scenario.name} on {name}: {surprise}\n{surprise.decisions}"


@pytest.mark.parametrize(("scenario", "name", "configuration"), PAIRS, ids=NAMES)
def test_two_engines_side_by_side_decide_and_stand_alike(
    scenario: Scenario, name: str, configuration: Configuration
) -> None:
    result = compare(
        lambda: script_of(scenario, configuration), StageAdapter, StageAdapter, snap_every=1
    )
    assert result.divergence is None
    assert result.snap_count == result.event_count


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_named_for_its_scenario_and_says_which_cases_it_is_of(path: Path) -> None:
    scenario = SCENARIOS[path.stem]
    assert scenario.name == path.stem
    assert scenario.says.endswith(".")
    assert scenario.cases
    assert all(re.fullmatch(r"\d+ [\w.-]+#\d+", case) for case in scenario.cases)


def test_there_is_a_scenario_for_a_state_without_slots() -> None:
    assert SCENARIOS["state_slots_exhausted"].configurations == ("state-full-few-slots",)
