"""What is said where CUDA is asked for and something of it is not there."""

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from kvd.cli.main import cli
from kvd.testing.stress import cuda_run
from kvd_client.errors import DeviceError


@pytest.mark.parametrize("command", [["stress", "--seeds", "1", "--backend"], ["bench", "moves"]])
def test_without_the_bindings_of_cuda_there_is_one_error(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("real", "arena"):
        monkeypatch.setitem(sys.modules, f"kvd_client.device.cuda.{name}", None)
    cuda_run.the_machine.cache_clear()
    options = ["cuda"] if command[-1] == "--backend" else ["--device", "cuda"]
    result = CliRunner().invoke(cli, [*command, *options])

    assert result.exit_code != 0
    assert result.output.startswith("error: the CUDA device needs cupy and cuda-bindings: ")
    assert result.output.count("\n") == 1


def test_without_a_gpu_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> object:
        raise DeviceError("no GPU at all here; visible are none")

    cuda_run.the_machine.cache_clear()
    monkeypatch.setattr(cuda_run, "cuda_device", none)
    result = CliRunner().invoke(cli, ["stress", "--backend", "cuda", "--seeds", "1"])

    assert result.exit_code != 0
    assert result.output == "error: no GPU at all here; visible are none\n"


class Bindings(ModuleType):
    """Bindings of CUDA on a machine without a driver."""

    def __getattr__(self, name: str) -> Any:
        return Bindings(name)

    def cuInit(self, flags: int) -> object:  # noqa: N802 its name in CUDA
        raise RuntimeError("no library\n\nof a driver")


def test_without_a_driver_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings("cuda.bindings")
    monkeypatch.setitem(sys.modules, "cuda", Bindings("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.delitem(sys.modules, "kvd_client.device.cuda.calls", raising=False)
    calls = importlib.import_module("kvd_client.device.cuda.calls")
    del sys.modules["kvd_client.device.cuda.calls"]

    with pytest.raises(DeviceError, match=r"no driver .* here: no library of a driver$"):
        calls.visible_gpus()
