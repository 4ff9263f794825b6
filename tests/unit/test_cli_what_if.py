"""``kvd what-if``: the published statistics answer as the engine does."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from kvd.alloc.checks import CheckLevel
from kvd.alloc.estimate import estimate_available
from kvd.cli import what_if as command
from kvd.cli.main import cli
from kvd.cli.query import StageStatistics
from kvd.cli.what_if import picture_of
from kvd.engine.incarnation import Incarnation
from kvd.engine.what_if import StagePicture, answer
from kvd.errors import ServeError
from kvd.serve.snapshot import stage_document
from kvd_proto.control import WhatIf
from kvd_proto.operations import Admit, Free
from kvd_proto.outcomes import AdmitResult
from tests.stateful.chains import block, fix
from tests.stateful.ranks import CONTEXT_TOKENS, int32s, int64s, stage


def busy() -> Incarnation:
    """Return a stage with live requests, a promise that is not taken yet, and holes."""
    storage = stage()
    found = Incarnation(
        storage,
        number=1,
        ranks=(0,),
        level=CheckLevel.STRICT,
        ring_entries_max=100,
        lag_entries_max=100,
    )
    for request, (prompt, new) in enumerate(((60, 20), (16, 40), (80, 4), (33, 0)), start=1):
        operation = Admit(
            int64s([request]), int32s([prompt]), int32s([new]), int32s([min(16, prompt)]), 0
        )
        assert isinstance(found.engine.decide(0, operation).result, AdmitResult)
    found.engine.decide(0, Free(int64s([2])))
    return found


def published(incarnation: Incarnation) -> dict[str, Any]:
    """Return the stage's statistics as they leave the daemon."""
    document: dict[str, Any] = json.loads(
        msgspec.json.encode(stage_document(incarnation, stage().storage))
    )
    return document


def as_statistics(document: dict[str, Any]) -> StageStatistics:
    return msgspec.json.decode(json.dumps(document).encode(), type=StageStatistics)


def picture_inside(incarnation: Incarnation) -> StagePicture:
    table = incarnation.engine.requests
    return StagePicture(
        snapshot=table.chain.snapshot()._replace(epoch_count=0),
        empty=table.chain.empty,
        promised_units=table.chain.promised_units,
        shape=table.shape,
        chunk_tokens=table.chunk_tokens,
        holder_count=table.holder_count,
        free_count=len(table.rows.free),
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Give a function that runs the command against published statistics."""

    def run_command(*arguments: str, groups: list[dict[str, Any]] | None = None) -> Result:
        shown = [group_of("demo", published(busy()))] if groups is None else groups
        document = {
            "schema": "kvd.stats/1",
            "daemon": {"pid": 1, "uptime_s": 1.0, "epoch": 1, "build": "x"},
            "groups": shown,
        }
        body = json.dumps(document).encode()

        def fetched(_: Path) -> bytes:
            return body

        monkeypatch.setattr(command, "fetch_statistics", fetched)
        return CliRunner().invoke(
            cli, ["what-if", "--socket", str(tmp_path / "kvd.sock"), *arguments]
        )

    return run_command


def group_of(name: str, *stages: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "tp": 1,
        "pp": len(stages),
        "incarnation": 1,
        "state": "running",
        "stages": list(stages),
    }


def test_the_published_statistics_hold_all_that_an_answer_depends_on() -> None:
    incarnation = busy()
    assert picture_of(as_statistics(published(incarnation))) == picture_inside(incarnation)


@pytest.mark.parametrize("seed", range(8))
def test_answers_from_outside_are_those_of_the_engine(seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    incarnation = busy()
    outside = picture_of(as_statistics(published(incarnation)))
    for question in (
        WhatIf(
            prompt_tokens=dice.randint(1, CONTEXT_TOKENS),
            new_tokens_max=dice.randint(0, 40),
            chunk_tokens=dice.choice((0, 4, 32)),
        ),
        WhatIf(demand_units=tuple(dice.randint(0, 60) for _ in outside.snapshot.bands)),
    ):
        assert answer(outside, question) == incarnation.what_if(question)


def test_transfers_that_stand_in_the_way_are_published() -> None:
    incarnation = busy()
    chain = incarnation.engine.chain
    fix(chain.bands[1], hard=(8, 9), soft=(8, 12))
    block(chain, ((0, 8), (16, 24)))
    outside = picture_of(as_statistics(published(incarnation)))
    assert outside == picture_inside(incarnation)
    assert outside.snapshot.bands[1].hard_fixed == (8, 9)
    assert outside.snapshot.blocked == ((0, 8), (16, 24))


def test_the_estimate_of_each_band_is_published() -> None:
    incarnation = busy()
    bands = as_statistics(published(incarnation)).bands
    assert [band.available_estimate_units for band in bands] == [
        one.read() for one in estimate_available(incarnation.engine.chain)
    ]


def test_statistics_without_prices_are_refused_naming_the_older_build() -> None:
    document = published(busy())
    del document["demand"]
    with pytest.raises(ServeError, match=r"stage 0 do not say how requests are priced.* older"):
        picture_of(as_statistics(document))


def test_a_word_that_this_build_does_not_know_is_refused_by_name() -> None:
    document = published(busy())
    document["bands"][0]["chain_kind"] = "sideways"
    with pytest.raises(ServeError, match="'sideways'"):
        picture_of(as_statistics(document))


def test_a_demand_that_fits_ends_with_code_0_and_a_table(run: Any) -> None:
    result = run("--units", "1,1,1,1")
    assert result.exit_code == 0, result.output
    assert "group demo, stage 0: 1 state, 1 window_20, 1 window_8, 1 full" in result.output
    for text in ("nothing", "settling freed pages", "rearranging", "no_move", "yes"):
        assert text in result.output


def test_a_demand_that_does_not_fit_ends_with_code_1_and_the_obstacle(run: Any) -> None:
    result = run("--units", "0,0,0,100000")
    assert result.exit_code == 1
    assert "in the way: " in result.output
    assert "no empty arena holds it" in result.output


def test_a_request_is_told_what_memory_can_grant_it(run: Any) -> None:
    result = run("--prompt", "20", "--new", "10")
    assert result.exit_code == 0, result.output
    assert "memory can ever grant this request 10 new tokens" in result.output


def test_the_chunk_is_part_of_the_question(run: Any) -> None:
    short = json.loads(run("--prompt", "64", "--new", "1", "--chunk", "4", "--json").stdout)
    long = json.loads(run("--prompt", "64", "--new", "1", "--chunk", "64", "--json").stdout)
    asked = [one["stages"][0]["demand_units"] for one in (short, long)]
    assert asked[0]["window_8"] < asked[1]["window_8"]
    assert asked[0]["full"] == asked[1]["full"]


def test_the_document_has_every_step_with_what_it_moves(run: Any) -> None:
    result = run("--units", "1,0,0,2", "--json")
    document = json.loads(result.stdout)
    assert document["schema"] == "kvd.what-if/1"
    assert document["fits"] is True
    (found,) = document["stages"]
    assert (found["group"], found["stage"], found["obstacle"]) == ("demo", 0, None)
    assert found["demand_units"] == {"state": 1, "window_20": 0, "window_8": 0, "full": 2}
    assert [step["name"] for step in found["steps"]] == ["now", "settled", "relief", "eviction"]
    assert found["steps"][0] == {
        "name": "now",
        "fits": True,
        "layout": "no_move",
        "moved_units": {"state": 0, "window_20": 0, "window_8": 0, "full": 0},
        "moved_bytes": 0,
    }


def test_a_demand_fits_only_if_it_fits_every_stage(run: Any) -> None:
    roomy, narrow = published(busy()), published(busy())
    narrow["stage"] = 1
    narrow["bands"][0]["virtual_free"] = 0
    groups = [group_of("demo", roomy, narrow)]
    document = json.loads(run("--units", "1,0,0,0", "--json", groups=groups).stdout)
    assert [one["fits"] for one in document["stages"]] == [True, False]
    assert document["fits"] is False
    assert run("--units", "1,0,0,0", groups=groups).exit_code == 1
    assert run("--units", "1,0,0,0", "--stage", "0", groups=groups).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --units, or --prompt and --new"),
        (("--prompt", "3"), "give --units, or --prompt and --new"),
        (("--units", "1", "--new", "2"), "give one"),
        (("--units", "1,x"), "'1,x'"),
        (("--units", "1,2"), "[1, 2]; 4 counts"),
        (("--prompt", "0", "--new", "1"), "prompt_tokens is 0"),
        (("--units", "1,1,1,1", "--group", "other"), "group 'other' with an arena"),
        (("--units", "1,1,1,1", "--stage", "3"), "stages 0 to 0, not 3"),
    ],
)
def test_a_question_that_makes_no_sense_ends_with_code_2(
    run: Any, arguments: tuple[str, ...], said: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_group_must_be_named_where_there_are_several(run: Any) -> None:
    groups = [group_of(name, published(busy())) for name in ("a", "b")]
    refused = run("--units", "1,0,0,0", groups=groups)
    assert refused.exit_code == 2
    assert "several groups are attached (a, b)" in refused.output
    chosen = run("--units", "1,0,0,0", "--group", "b", groups=groups)
    assert chosen.exit_code == 0
    assert "group b, stage 0" in chosen.output


def test_without_an_arena_there_is_nothing_to_ask(run: Any) -> None:
    result = run("--units", "1", groups=[group_of("idle")])
    assert result.exit_code == 2
    assert "attached: none" in result.output


def test_promises_of_others_count_as_taken() -> None:
    picture = picture_inside(busy())
    question = WhatIf(demand_units=(0, 0, 0, 1))
    assert answer(picture, question).steps[-1].fits
    everything = tuple(band.geometry.room_units for band in picture.snapshot.bands)
    promised = replace(picture, promised_units=everything)
    assert not answer(promised, question).steps[-1].fits
