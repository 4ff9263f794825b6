"""Shrinking: what is left of a failing program is what it takes, and no more."""

from collections.abc import Callable

import pytest

from kvd.alloc.arena_order import ArenaOrder
from kvd.alloc.signals import Signal
from kvd.testing.stress.as_test import as_test
from kvd.testing.stress.generator import program_of, steps_of
from kvd.testing.stress.program import (
    Admit,
    AnyStep,
    Free,
    Launch,
    Play,
    Process,
    Program,
    Relief,
    Send,
    decode_program,
    encode_program,
)
from kvd.testing.stress.run import run_steps
from kvd.testing.stress.shrink import Failing, attempt, shrink

SHAPE = "state-window-full"
FOUND_STEPS_MAX = 400
SHRUNK_STEPS_MAX = 8


def _fails_if(check: str, fails: Callable[[Program, int], bool]) -> Try:
    """Return a run that fails with the first step of a program of which ``fails`` says so."""

    def played(program: Program) -> Failing | None:
        for place in range(len(program.steps)):
            if fails(program, place):
                return Failing(check, place + 1)
        return None

    return played


def _frees_behind_a_long_prompt(program: Program, place: int) -> bool:
    prompts = [it.prompt_tokens for it in program.steps[:place] if isinstance(it, Admit)]
    return isinstance(program.steps[place], Free) and max(prompts, default=0) >= 13


def _relieves(program: Program, place: int) -> bool:
    step = program.steps[place]
    return isinstance(step, Relief) and len(step.units) >= 2 and step.units[1] >= 3


def _long(*steps: AnyStep) -> Program:
    """Return a program with these steps among many."""
    rest = [Send(), Play(actions_count=9), Launch(count=3, unstated=True), Process(count=2)]
    mixed = [one for step in steps for one in (*rest, step)]
    return Program(
        shape=SHAPE,
        seed_index=9,
        ranks_count=4,
        leader=True,
        overlap=True,
        steps=(*mixed, *rest, *rest),
    )


def test_only_the_steps_that_it_takes_are_left_with_the_least_numbers() -> None:
    program = _long(
        Admit(count=2, prompt_tokens=40, new_tokens=7), Admit(prompt_tokens=12), Free(count=3)
    )

    shrunk = shrink(program, _fails_if("stress.maps", _frees_behind_a_long_prompt))

    assert shrunk.program == Program(
        shape=SHAPE, seed_index=0, steps=(Admit(prompt_tokens=13), Free())
    )
    assert (shrunk.check, shrunk.exhausted) == ("stress.maps", False)


def test_lists_become_short_and_their_numbers_small() -> None:
    program = _long(Relief(units=(7, 12, 3, 3)))

    shrunk = shrink(program, _fails_if("stress.ledger", _relieves))

    assert shrunk.program.steps == (Relief(units=(0, 3)),)


def test_options_of_the_stage_that_it_takes_are_kept() -> None:
    def fails(program: Program, place: int) -> bool:
        return program.overlap and program.ranks_count > 2

    shrunk = shrink(_long(Free()), _fails_if("stress.race", fails))

    stage = shrunk.program
    assert (stage.overlap, stage.leader, stage.ranks_count, stage.seed_index) == (True, False, 4, 0)
    assert len(stage.steps) == 1


def test_a_program_that_fails_otherwise_is_another_one() -> None:
    def played(program: Program) -> Failing | None:
        whole = len(program.steps) > 3
        return Failing("stress.maps" if whole else "stress.payload", len(program.steps))

    shrunk = shrink(_long(Free(), Free()), played)

    assert len(shrunk.program.steps) == 4


def test_shrinking_ends_when_its_runs_are_used_up() -> None:
    program = _long(Admit(prompt_tokens=40), Free(), Free(), Free())
    count = 0

    def played(program: Program) -> Failing | None:
        nonlocal count
        count += 1
        return _fails_if("stress.maps", _frees_behind_a_long_prompt)(program)

    shrunk = shrink(program, played, runs_max=6)

    assert (count, shrunk.runs_count, shrunk.exhausted) == (6, 6, True)
    assert played(shrunk.program) is not None


@pytest.mark.parametrize(("runs_max", "problem"), [(0, "runs_max is 0"), (9, "does not fail")])
def test_there_has_to_be_a_failure_and_a_run_to_see_it(runs_max: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        shrink(_long(Free()), lambda program: None, runs_max=runs_max)


def test_a_program_is_written_as_the_repository_writes_tests() -> None:
    many = dict.fromkeys(
        ("count", "prompt_tokens", "new_tokens", "take_tokens", "chunk_tokens"), 99
    )
    program = Program(
        shape=SHAPE,
        seed_index=3,
        overlap=True,
        steps=(Admit(**many, growth_permille=100), Free(), Relief(units=(1, 2))),
    )

    text = as_test(program, "stress.pinned")

    assert "    overlap=True,\n" in text
    assert "            growth_permille=100,\n        ),\n        Free(),\n" in text
    assert "        Relief(units=(1, 2)),\n    ),\n)\n" in text
    assert "def test_stress_pinned_holds() -> None:" in text
    scope: dict[str, object] = {}
    exec(text, scope)
    assert scope["PROGRAM"] == program


@pytest.mark.slow
def test_a_planted_fault_is_found_shrunk_and_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ArenaOrder.take_waits

    def forget(order: ArenaOrder) -> tuple[Signal, ...]:
        taken(order)
        return ()

    with monkeypatch.context() as planted:
        planted.setattr(ArenaOrder, "take_waits", forget)
        found = run_steps(program_of(SHAPE, 0), steps_of(SHAPE, 0), operations_max=FOUND_STEPS_MAX)
        assert found.failure is not None
        shrunk = shrink(found.program, attempt)
        text = as_test(shrunk.program, shrunk.check)
        with pytest.raises(AssertionError):
            _run_pasted(text)

    assert shrunk.check == found.failure.check
    assert shrunk.check.startswith("stress.")
    assert not shrunk.exhausted
    assert len(shrunk.program.steps) <= SHRUNK_STEPS_MAX
    assert decode_program(encode_program(shrunk.program)) == shrunk.program
    _run_pasted(text)


def _run_pasted(text: str) -> None:
    """Run the test of a module as pytest does."""
    scope: dict[str, Callable[[], None]] = {}
    exec(text, scope)
    (test,) = [found for name, found in scope.items() if name.startswith("test_")]
    test()
