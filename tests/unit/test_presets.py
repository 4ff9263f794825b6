"""Packaged presets and configurations on disk."""

from pathlib import Path

import pytest

from kvd.declare.model import decode_config
from kvd.errors import FileError
from kvd.presets import CONFIG_BYTES_MAX, preset_config, preset_names, read_config


def test_the_promised_models_are_there() -> None:
    assert set(preset_names()) >= {
        "gpt-oss-20b",
        "gemma-3-27b",
        "qwen3-next-80b-a3b",
        "jamba-1.5-mini",
        "nemotron-h-8b",
        "deepseek-v3",
        "kimi-linear-48b-a3b",
        "llama-4-scout",
        "phi-4-mini-flash",
    }


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_configuration(name: str) -> None:
    assert "model_type" in decode_config(preset_config(name))


@pytest.mark.parametrize("name", ["gpt-oss", "", "../presets/gpt-oss-20b", "gpt-oss-20b.json"])
def test_an_unknown_preset_lists_the_known_ones(name: str) -> None:
    with pytest.raises(FileError, match="is unknown: expected one of deepseek-v3, ") as caught:
        preset_config(name)
    assert repr(name) in caught.value.message


def test_a_folder_stands_for_the_configuration_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == b"{}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere\.json: No such file"):
        read_config(tmp_path / "nowhere.json")


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"config\.json: No such file"):
        read_config(tmp_path)


def test_a_path_through_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="Not a directory"):
        read_config(tmp_path / "file" / "config.json")


def test_a_file_of_absurd_size_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "model.safetensors"
    with large.open("wb") as stream:
        stream.truncate(CONFIG_BYTES_MAX + 1)
    with pytest.raises(FileError, match=r"model\.safetensors has over"):
        read_config(large)
