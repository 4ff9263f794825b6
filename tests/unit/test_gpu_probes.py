"""What of the GPU probes needs neither GPU nor processes: command line, findings, judgements."""

import json

import numpy as np
import pytest

from tests.gpu.probes import __main__ as command
from tests.gpu.probes.confirmed import Word
from tests.gpu.probes.findings import (
    Finding,
    Verdict,
    parse_line,
    render_json,
    render_table,
    report,
    spread,
    verdict_of,
)

FINDING = Finding(
    probe="capture",
    seen="a | b\nc",
    counts={"kills": 3, "last_ms": 1.23456789, "state": "as before"},
    rule="never captured",
    verdict=Verdict.CONFIRMS,
)


def test_a_finding_survives_the_line_that_carries_it(capsys: pytest.CaptureFixture[str]) -> None:
    report(FINDING)
    assert parse_line(capsys.readouterr().out.rstrip("\n")) == FINDING


def test_lines_without_the_mark_carry_no_finding() -> None:
    assert parse_line("a library's remark") is None


def test_a_marked_line_without_a_finding_is_an_error() -> None:
    with pytest.raises(KeyError):
        parse_line('finding {"probe": "capture"}')


def test_text_cannot_end_a_cell_or_a_row_of_the_table() -> None:
    table = render_table([FINDING]).splitlines()
    assert len(table) == 3
    assert table[2].replace("\\|", "").count("|") == table[0].count("|")
    assert "last_ms 1.235, state as before" in table[2]


def test_json_names_its_schema_and_keeps_every_digit() -> None:
    content = json.loads(render_json([FINDING], {"gpus": "none"}))
    assert content["schema"] == "kvd.probes/1"
    assert content["machine"] == {"gpus": "none"}
    assert content["findings"][0]["counts"]["last_ms"] == 1.23456789
    assert content["findings"][0]["verdict"] == "confirms"


def test_a_spread_of_nothing_says_so() -> None:
    assert spread("pidfd", []) == {"pidfd_samples": 0}
    assert spread("pidfd", [3.0, 1.0, 2.0]) == {
        "pidfd_min_ms": 1.0,
        "pidfd_p50_ms": 2.0,
        "pidfd_max_ms": 3.0,
    }


def test_every_probe_can_be_chosen_and_no_other_name() -> None:
    for probe in command.PROBES:
        assert command.parse(["--only", probe.name]).only == [probe.name]
    with pytest.raises(SystemExit):
        command.parse(["--only", "weather"])


def test_a_probe_without_time_left_is_reported_as_left_out() -> None:
    (finding,) = command.run_all(command.PROBES[:1], 0, 0.0, quiet=True)
    assert finding.verdict is Verdict.FAILED
    assert "left out" in finding.seen


def test_a_failed_probe_makes_the_command_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PROBES", command.PROBES[:1])
    assert command.main(["--json", "--budget-s", "0"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert [item["verdict"] for item in content["findings"]] == ["failed"]


@pytest.mark.parametrize(
    ("progress", "even", "odd", "judged"),
    [
        (0, [0, 0], [0, 0], Word(exact=1)),
        (6, [6, 6], [5, 5], Word(exact=1)),
        (6, [6, 6], [5, 7], Word(behind_by_one=1)),
        (6, [6, 6], [7, 7], Word(behind_by_one=1)),
        (6, [6, 8], [7, 7], Word(behind_by_more=1)),
        (6, [8, 8], [9, 7], Word(behind_by_more=1)),
        (6, [4, 6], [5, 5], Word(ahead=1)),
        (7, [6, 6], [7, 5], Word(ahead=1)),
    ],
)
def test_a_progress_word_is_judged_by_both_regions(
    progress: int, even: list[int], odd: list[int], judged: Word
) -> None:
    word = Word()
    word.judge(progress, [np.array(even, np.uint64), np.array(odd, np.uint64)])
    assert word == judged


def test_half_of_an_observation_confirms_nothing_but_can_contradict() -> None:
    assert verdict_of(True, True) is Verdict.CONFIRMS
    assert verdict_of(False, True) is Verdict.INFORMS
    assert verdict_of(False, False) is Verdict.CONTRADICTS
