"""What only a process of its own shows: the imports of the daemon, and what the wheel holds."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.arch.source import REPOSITORY, read_repository

DAEMON_PACKAGES = ("kvd.serve", "kvd.hold", "kvd.cli.serve", "kvd.cli.hold")


def test_the_daemon_imports_neither_torch_nor_cupy() -> None:
    modules = [module.name for module in read_repository().within(*DAEMON_PACKAGES)]
    assert modules
    program = (
        f"import importlib, sys\n"
        f"for name in {modules!r}:\n"
        f"    importlib.import_module(name)\n"
        f"print(*sorted({{'torch', 'cupy', 'cuda'}} & set(sys.modules)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []


@pytest.mark.slow
def test_the_wheel_holds_exactly_the_three_packages(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "kvd",
        "kvd_client",
        "kvd_proto",
    }
    assert {f"{top}/py.typed" for top in ("kvd", "kvd_client", "kvd_proto")} <= set(names)
