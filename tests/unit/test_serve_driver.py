"""The driver's list of processes: asked without waiting, believed only where it is proof."""

import sys
from collections.abc import Callable, Iterator
from threading import Event
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from kvd.serve import driver_list
from kvd.serve.driver import HELPER_WAIT_S, DriverList
from kvd.serve.quiet import DriverAnswer

DEADLINE_S = 20.0
Make = Callable[[str], DriverList]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Iterator[Make]:
    """Give a function that makes a list whose helper is this program."""
    made: list[DriverList] = []

    def one(program: str) -> DriverList:
        made.append(DriverList(helper=("-S", "-c", program), clock=clock))
        return made[-1]

    yield one
    for found in made:
        found.close()


def answered(found: DriverList, *pids: int) -> DriverAnswer:
    """Ask until a helper has said something."""
    end, pause = monotonic() + DEADLINE_S, Event()
    while (answer := found.ask(pids)).text == "the driver has not answered yet":
        assert monotonic() < end
        pause.wait(0.005)
    return answer


def test_processes_that_are_not_listed_are_proved_to_hold_nothing(make: Make) -> None:
    found = make("print('{\"pids\": [1, 40]}')")

    assert answered(found, 7, 8) == (True, "")


def test_a_process_that_is_listed_is_named_and_asked_about_again(make: Make, clock: Clock) -> None:
    found = make("print('{\"pids\": [7]}')")
    assert answered(found, 8, 7) == (False, "the driver still lists process 7")
    found._helper = ("-S", "-c", "print('{\"pids\": []}')")  # pyright: ignore[reportPrivateUsage]

    assert found.ask([8, 7]).text == "the driver still lists process 7"
    clock.now_s += 1
    end, pause = monotonic() + DEADLINE_S, Event()
    while not found.ask([8, 7]).clear:
        assert monotonic() < end
        pause.wait(0.005)


def test_what_was_listed_before_a_process_ended_says_nothing_of_it(
    make: Make, clock: Clock
) -> None:
    found = make("print('{\"pids\": []}')")
    found.ask([7])  # starts a helper

    assert not found.ask([8]).clear
    assert answered(found, 7).clear
    assert found.ask([8]).text == "the driver has not answered yet"
    clock.now_s += 1
    assert answered(found, 8).clear


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ('print(\'{"problem": "no driver"}\')', "no driver"),
        ("import os; os._exit(9)", "the helper that asks the driver ended without an answer"),
        ("print('[]')", "the helper that asks the driver ended without an answer"),
    ],
)
def test_whatever_is_no_answer_is_no_proof(make: Make, program: str, text: str) -> None:
    assert answered(make(program), 7) == (False, text)


@pytest.mark.case("108")
def test_a_helper_that_hangs_is_killed_and_no_proof(make: Make, clock: Clock) -> None:
    found = make("import signal; signal.pause()")
    assert not found.ask([7]).clear

    clock.now_s += HELPER_WAIT_S + 1

    assert found.ask([7]) == (False, f"the driver did not answer within {HELPER_WAIT_S} s")


def nvml(*gpus: dict[str, list[int]]) -> Any:
    """Return a stand-in for NVML with these processes by kind on each GPU."""

    def of(kind: str) -> Callable[[dict[str, list[int]]], list[SimpleNamespace]]:
        return lambda gpu: [SimpleNamespace(pid=pid) for pid in gpu.get(kind, [])]

    def gpu(place: int) -> dict[str, list[int]]:
        return gpus[place]

    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=gpu,
        **{kind: of(kind) for kind in driver_list.KINDS},
    )


COMPUTE, GRAPHICS, SHARED = driver_list.KINDS


def in_namespace(monkeypatch: pytest.MonkeyPatch, inode: int) -> None:
    """Let this process be in the pid namespace of this number."""

    def stat(_path: str) -> SimpleNamespace:
        return SimpleNamespace(st_ino=inode)

    monkeypatch.setattr(driver_list.os, "stat", stat)


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be in the host's pid namespace, whatever it is."""
    in_namespace(monkeypatch, 0xEFFFFFFC)


@pytest.mark.usefixtures("on_the_host")
def test_all_kinds_of_contexts_on_all_gpus_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvml({COMPUTE: [9, 4], GRAPHICS: [4]}, {SHARED: [12]})
    monkeypatch.setitem(sys.modules, "pynvml", found)

    assert driver_list.answer() == {"pids": [4, 9, 12]}


@pytest.mark.usefixtures("on_the_host")
def test_a_process_without_a_number_may_be_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml({COMPUTE: [0, 4]}))

    assert driver_list.answer() == {"problem": "the driver lists a process without saying which"}


@pytest.mark.usefixtures("on_the_host")
def test_a_driver_that_fails_and_one_that_is_not_there_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert driver_list.answer() == {"problem": "nvidia-ml-py is not installed"}

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace())
    assert "the driver was asked in vain: AttributeError" in driver_list.answer()["problem"]


def test_in_a_pid_namespace_of_its_own_numbers_mean_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_namespace(monkeypatch, 4026532281)
    monkeypatch.setitem(sys.modules, "pynvml", nvml({COMPUTE: [4]}))

    assert "a pid namespace of its own" in driver_list.answer()["problem"]
