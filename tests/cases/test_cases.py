"""The table of public cases: it is fresh, and no case is forgotten."""

from tests.cases.table import TABLE, Case, Holder, read_cases, read_holders, table


def test_the_table_is_what_the_command_writes() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(read_cases(), read_holders()), (
        "run python -m tests.cases"
    )


def test_every_case_has_a_test_a_scenario_or_a_reason() -> None:
    held = {case for holder in read_holders() for case in holder.cases}
    assert [case.case for case in read_cases() if case.case not in held and not case.note] == []


def test_whoever_holds_a_case_names_one_that_there_is() -> None:
    known = {case.case for case in read_cases()}
    wrong = [holder for holder in read_holders() if not known.issuperset(holder.cases)]
    assert wrong == []


def test_cases_have_one_number_each_and_ascend() -> None:
    numbers = [int(case.case) for case in read_cases()]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 100


def test_a_case_shows_its_holders_then_its_note() -> None:
    found = table([Case("7", "x#1", "It broke", "Later: more.")], [Holder("a.py::test_b", ("7",))])
    assert found.endswith("| 7 | x#1 | It broke | `a.py::test_b`<br>Later: more. |\n")
