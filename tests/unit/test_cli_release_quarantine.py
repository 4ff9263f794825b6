"""``kvd release-quarantine``: which rank is meant, and what it says where nothing can be done."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvd.cli import release_quarantine as command
from kvd.cli.main import cli
from kvd_proto.control import FreeQuarantined


@pytest.mark.parametrize(
    ("rank", "stage", "number"), [("gpt-oss/3", 0, 3), ("gpt-oss/1/3", 1, 3), ("gpt-oss/0/0", 0, 0)]
)
def test_a_rank_is_named_by_group_stage_and_rank(
    monkeypatch: pytest.MonkeyPatch, rank: str, stage: int, number: int
) -> None:
    asked: list[FreeQuarantined] = []

    def note(_path: Path, request: FreeQuarantined) -> None:
        asked.append(request)

    monkeypatch.setattr(command, "_ask", note)

    ran = CliRunner().invoke(cli, ["release-quarantine", rank, "--i-have-proof", "it is off"])

    assert ran.exit_code == 0, ran.output
    assert asked == [
        FreeQuarantined(group="gpt-oss", stage=stage, rank=number, evidence="it is off")
    ]
    assert ran.stdout == f"stage {stage} rank {number} of group gpt-oss is given back\n"


@pytest.mark.parametrize("rank", ["gpt-oss", "gpt-oss/", "gpt-oss/x", "gpt-oss/1/2/3", "g/-1"])
def test_what_names_no_rank_is_refused(rank: str) -> None:
    ran = CliRunner().invoke(cli, ["release-quarantine", rank, "--i-have-proof", "it is off"])

    assert ran.exit_code == 2
    assert f"error: {rank!r} names no rank: write GROUP/RANK" in ran.stderr


def test_without_evidence_nothing_is_asked() -> None:
    ran = CliRunner().invoke(cli, ["release-quarantine", "gpt-oss/0"])

    assert ran.exit_code == 2
    assert "--i-have-proof" in ran.stderr


def test_without_a_daemon_it_says_so(tmp_path: Path) -> None:
    arguments = ["gpt-oss/0", "--i-have-proof", "it is off", "--runtime-dir", str(tmp_path)]

    ran = CliRunner().invoke(cli, ["release-quarantine", *arguments])

    assert ran.exit_code == 2
    assert f"error: no daemon answers at {tmp_path}" in ran.stderr
