"""The plan command, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvd.cli.main import cli


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVD_CONFIG", "KVD_BUDGET_BYTES", "KVD_PAGE_TOKENS"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_preset_alone_is_enough_and_the_default_budget_is_said() -> None:
    result = run("--preset", "qwen3-next-80b-a3b")
    assert result.exit_code == 0
    for text in ("42,949,672,960 B", "the default", "77,266,944", "24,576", "budget floor"):
        assert text in result.stdout


def test_a_path_alone_is_enough(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "hidden_size": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    assert document("--model", str(tmp_path))["bands"][0]["entry_bytes"] == 2 * 2 * 512 * 2


def test_the_document_has_a_band_per_lifetime() -> None:
    bands = document("--preset", "phi-4-mini-flash")["bands"]
    assert [(band["name"], band["kind"]) for band in bands] == [
        ("state", "state"),
        ("window_512", "window"),
        ("full", "full"),
    ]
    assert [(band["entry_bytes"], band["unit_bytes"]) for band in bands] == [
        (3_225_600, 3_225_600),
        (40_960, 40_960 * 64),
        (5_120, 5_120 * 64),
    ]
    assert all(band["pages_max"] > 0 for band in bands)


def test_the_document_names_its_schema_floor_and_fixed_allocations() -> None:
    found = document("--preset", "gpt-oss-20b", "--running", "256", "--page", "1")
    assert found["schema"] == "kvd.plan/1"
    assert found["fixed_bytes"]["request_table"] == 134_746_128
    assert found["budget_floor_bytes"] < found["budget_bytes"] == 40 << 30


def test_stages_are_listed_one_by_one() -> None:
    found = document("--preset", "gpt-oss-20b", "--pp", "2")
    assert [stage["layer_end_count"] for stage in found["stages"]] == [12, 24]
    assert {band["entry_bytes"] for stage in found["stages"] for band in stage["bands"]} == {12_288}


def test_stages_take_given_layers() -> None:
    found = document("--preset", "gpt-oss-20b", "--pp", "2", "--stage-layers", "10,14")
    assert [stage["layer_end_count"] for stage in found["stages"]] == [10, 24]


def test_flags_reach_sizing() -> None:
    found = document(
        "--preset",
        "qwen3-next-80b-a3b",
        "--tp",
        "2",
        "--budget",
        "20GiB",
        "--state-slots",
        "30",
        "--context",
        "4096",
        "--running",
        "8",
        "--tracking-slots",
        "2",
    )
    state = found["bands"][0]
    assert (found["budget_bytes"], found["context_tokens"]) == (20 << 30, 4096)
    assert (state["target_units"], state["floor_units"]) == (30, 5)
    assert found["running_requests"] == 30 // 5


def test_a_draft_model_adds_to_the_targets_entry(tmp_path: Path) -> None:
    draft = tmp_path / "draft.json"
    draft.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 1,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "head_dim": 64,
            }
        )
    )
    bands = document("--preset", "gpt-oss-20b", "--draft-model", str(draft))["bands"]
    assert [band["entry_bytes"] for band in bands] == [24_576, 24_576 + 2048]


def test_settings_of_the_environment_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVD_PAGE_TOKENS", "16")
    assert document("--preset", "gpt-oss-20b")["page_tokens"] == 16


def test_neither_preset_nor_path_is_refused_listing_the_presets() -> None:
    assert "gpt-oss-20b" in refusal()


def test_preset_and_path_together_are_refused() -> None:
    assert "one of --preset" in refusal("--preset", "gpt-oss-20b", "--model", "config.json")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--preset", "gpt-5"), "preset 'gpt-5' is unknown"),
        (("--model", "/nowhere/at/all"), "/nowhere/at/all: No such file"),
        (("--preset", "gpt-oss-20b", "--pp", "24"), "stage 0 (layer 0)"),
        (("--preset", "qwen3-next-80b-a3b", "--pp", "16"), "stage 0 (layers 0 to 2)"),
        (("--preset", "gpt-oss-20b", "--tp", "3"), "num_attention_heads is 64"),
        (("--preset", "gpt-oss-20b", "--budget", "4MiB"), "short by 4739072 bytes"),
        (("--preset", "gpt-oss-20b", "--budget", "many"), "'many'"),
        (("--preset", "gpt-oss-20b", "--state-slots", "4"), "no layer with a state"),
        (("--preset", "gpt-oss-20b", "--stage-layers", "a,b"), "stage_layers = 'a,b'"),
        (("--preset", "gpt-oss-20b", "--chunk", "10"), "chunk_tokens is 10"),
    ],
)
def test_a_bad_input_is_one_line_with_the_value(arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in refusal(*arguments)


def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("not json")
    assert "is not JSON" in refusal("--model", str(tmp_path))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"model_type": "novel", "num_hidden_layers": 2}, "model_type 'novel' is unknown to kvd"),
        ({"model_type": "bert", "num_hidden_layers": 2}, "model_type 'bert' is unknown to kvd"),
        ({"num_hidden_layers": 2}, "model_type is missing"),
        (
            {"model_type": "llama", "num_hidden_layers": 2, "ssm_state_size": 16},
            "ssm_state_size is 16",
        ),
    ],
)
def test_a_configuration_of_an_unknown_kind_is_refused_by_name(
    tmp_path: Path, config: dict[str, object], complaint: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert complaint in refusal("--model", str(tmp_path))
