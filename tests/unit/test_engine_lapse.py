"""When promises lapse, in batches of the program that was given them."""

import pytest

from kvd.engine.lapse import Lapses


def _ended(lapses: Lapses, count: int, *, program: int = 0) -> list[list[int]]:
    return [lapses.end_batch(program) for _ in range(count)]


@pytest.mark.case("123")
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_promise_lives_for_so_many_batches_the_running_one_first(batches: int) -> None:
    lapses = Lapses()
    _ended(lapses, 3)
    lapses.add(0, [7, 8], batches=batches)
    assert _ended(lapses, 6) == [[]] * (batches - 1) + [[7, 8]] + [[]] * (6 - batches)


def test_batches_of_another_program_do_not_count() -> None:
    lapses = Lapses()
    lapses.add(3, [7], batches=2)
    assert _ended(lapses, 5, program=4) == [[]] * 5
    assert _ended(lapses, 2, program=3) == [[], [7]]


def test_promises_of_several_batches_lapse_together_in_the_order_given() -> None:
    lapses = Lapses()
    lapses.add(0, [7], batches=3)
    _ended(lapses, 1)
    lapses.add(0, [5], batches=2)
    assert _ended(lapses, 2) == [[], [7, 5]]


@pytest.mark.parametrize(("again", "sizes"), [(0, [0, 0, 0, 0]), (3, [0, 0, 1, 0])])
def test_only_the_newest_word_about_an_id_counts(again: int, sizes: list[int]) -> None:
    lapses = Lapses()
    lapses.add(0, [7], batches=2)
    lapses.add(0, [7], batches=again)
    assert [len(lapsed) for lapsed in _ended(lapses, 4)] == sizes


def test_a_promise_without_an_end_never_lapses() -> None:
    lapses = Lapses()
    lapses.add(0, [7], batches=0)
    assert _ended(lapses, 9) == [[]] * 9


@pytest.mark.parametrize("waited", [0, 1, 2])
def test_an_old_promise_that_would_end_with_the_new_one_ends_it_once(waited: int) -> None:
    lapses = Lapses()
    lapses.add(0, [7], batches=3)
    _ended(lapses, waited)
    lapses.add(0, [7], batches=3 - waited)
    assert _ended(lapses, 4 - waited) == [*[[]] * (2 - waited), [7], []]


def test_a_promise_given_by_another_program_does_not_end_with_the_first_ones_batches() -> None:
    lapses = Lapses()
    lapses.add(3, [7, 8], batches=2)
    lapses.add(4, [7], batches=1)
    assert _ended(lapses, 3, program=3) == [[], [8], []]
    assert _ended(lapses, 1, program=4) == [[7]]


def test_an_id_may_be_promised_again_after_its_promise_lapsed() -> None:
    lapses = Lapses()
    lapses.add(0, [7], batches=1)
    assert _ended(lapses, 1) == [[7]]
    lapses.add(0, [7], batches=2)
    assert _ended(lapses, 3) == [[], [7], []]
