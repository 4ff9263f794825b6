"""``kvd doctor``: each check sees what it is there for, and the exit code follows."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvd.alloc.checks import CHECKS
from kvd.cli.checkup import (
    FIRST_PID_NAMESPACE,
    Verdict,
    check_assertions,
    check_cores,
    check_daemon,
    check_descriptors,
    check_gpus,
    check_memory,
    check_pid_namespace,
    check_pidfd,
    check_runtime_dir,
    is_optimized_build,
)
from kvd.cli.main import cli


def test_json_answers_every_question_once(tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["doctor", "--json", "--runtime-dir", str(tmp_path / "run")])
    document = json.loads(ran.stdout)
    questions = [item["question"] for item in document["checks"]]
    assert document["schema"] == "kvd.doctor/1"
    assert len(set(questions)) == len(questions)
    assert {"python", "pidfd", "memory descriptors", "daemon", "pyzmq"} <= set(questions)
    assert document["ok"] is (ran.exit_code == 0)


def test_a_runtime_directory_open_to_others_fails_the_command(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    ran = CliRunner().invoke(cli, ["doctor", "--runtime-dir", str(tmp_path)])
    assert ran.exit_code == 1
    assert "chmod 0700" in ran.output
    assert "does not run here" in ran.output


def test_switched_off_assertions_are_found() -> None:
    program = "from kvd.cli.checkup import check_assertions as f; print(f().verdict, f().found)"
    ran = subprocess.run(
        [sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "fail switched off by -OO"
    assert check_assertions().verdict is Verdict.OK


@pytest.mark.parametrize(
    ("config_arguments", "base_prefix", "optimized"),
    [
        ("'--enable-optimizations' '--with-lto'", "/usr/local", True),
        ("'--enable-shared'", "/usr", True),
        ("'--enable-shared'", "/opt/python", False),
    ],
)
def test_a_python_built_without_optimization_is_told_apart(
    config_arguments: str, base_prefix: str, optimized: bool
) -> None:
    assert is_optimized_build(config_arguments, base_prefix=base_prefix) is optimized


def test_this_host_passes_memory_descriptors() -> None:
    before = os.listdir("/proc/self/fd")
    assert check_descriptors().verdict is Verdict.OK
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_kernel_without_memfd_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    answer = check_descriptors()
    assert answer.verdict is Verdict.FAIL
    assert "Function not implemented" in answer.found


def test_this_host_sees_the_end_of_a_process() -> None:
    assert check_pidfd().verdict is Verdict.OK


def test_a_kernel_without_pidfd_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert check_pidfd().verdict is Verdict.FAIL


def test_the_hosts_pid_namespace_is_fine() -> None:
    assert check_pid_namespace(FIRST_PID_NAMESPACE, pid=1).verdict is Verdict.OK


@pytest.mark.parametrize(("pid", "collides"), [(1, True), (7, False)])
def test_a_containers_pid_namespace_is_a_warning(pid: int, collides: bool) -> None:
    answer = check_pid_namespace("pid:[4026532000]", pid=pid)
    assert answer.verdict is Verdict.WARN
    assert ("both pid 1" in answer.change) is collides


def test_a_private_runtime_directory_is_fine(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert check_runtime_dir(tmp_path).verdict is Verdict.OK


def test_a_missing_runtime_directory_can_be_made(tmp_path: Path) -> None:
    answer = check_runtime_dir(tmp_path / "a" / "b")
    assert answer.verdict is Verdict.OK
    assert not (tmp_path / "a").exists()


def test_a_file_in_place_of_the_runtime_directory_fails(tmp_path: Path) -> None:
    file = tmp_path / "run"
    file.touch()
    assert check_runtime_dir(file).verdict is Verdict.FAIL


def test_a_link_in_place_of_the_runtime_directory_fails(tmp_path: Path) -> None:
    link = tmp_path / "run"
    link.symlink_to(tmp_path)
    assert check_runtime_dir(link).verdict is Verdict.FAIL


def test_a_listening_daemon_is_named_by_pid(tmp_path: Path) -> None:
    path = tmp_path / "kvd.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        answer = check_daemon(path)
    assert answer.verdict is Verdict.OK
    assert f"pid {os.getpid()}" in answer.found


def test_a_socket_file_left_over_is_no_daemon(tmp_path: Path) -> None:
    path = tmp_path / "kvd.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
    answer = check_daemon(path)
    assert answer.verdict is Verdict.NOTE
    assert "left over" in answer.found


def test_no_socket_is_no_daemon(tmp_path: Path) -> None:
    answer = check_daemon(tmp_path / "kvd.sock")
    assert answer.verdict is Verdict.NOTE
    assert "kvd serve" in answer.change


@pytest.mark.parametrize(
    ("core_count", "busy_poll_us", "verdict"),
    [
        (1, 0, Verdict.WARN),
        (2, 0, Verdict.OK),
        (2, 50, Verdict.WARN),
        (4, 50, Verdict.OK),
    ],
)
def test_busy_poll_needs_a_core_to_spare(
    core_count: int, busy_poll_us: int, verdict: Verdict
) -> None:
    assert check_cores(core_count, busy_poll_us=busy_poll_us).verdict is verdict


@pytest.mark.parametrize(("budget_bytes", "verdict"), [(8, Verdict.OK), (9, Verdict.NOTE)])
def test_a_budget_beyond_main_memory_is_noted(budget_bytes: int, verdict: Verdict) -> None:
    assert check_memory(budget_bytes, limit_bytes=8).verdict is verdict


def test_gpus_are_listed_by_uuid() -> None:
    answers = list(check_gpus({"gpus": [["a-b", "NVIDIA X"], ["c-d", "NVIDIA Y"]]}))
    assert [(item.question, item.found) for item in answers] == [
        ("gpu 0", "GPU-a-b NVIDIA X"),
        ("gpu 1", "GPU-c-d NVIDIA Y"),
    ]


@pytest.mark.parametrize(
    ("answer", "mentions"),
    [
        ({"missing": "cuda-bindings"}, "no cuda-bindings"),
        ({"error": "CUDA_ERROR_NO_DEVICE"}, "CUDA_ERROR_NO_DEVICE"),
        ({"gpus": []}, "none"),
    ],
)
def test_a_host_without_gpus_is_told_why(answer: dict[str, object], mentions: str) -> None:
    (found,) = check_gpus(answer)
    assert found.verdict is Verdict.NOTE
    assert mentions in found.found


def test_invariants_lists_the_registry_as_a_table_and_as_json() -> None:
    table = CliRunner().invoke(cli, ["doctor", "--invariants"])
    listed = CliRunner().invoke(cli, ["doctor", "--invariants", "--json"])
    document = json.loads(listed.stdout)
    assert (table.exit_code, listed.exit_code) == (0, 0)
    assert document["schema"] == "kvd.invariants/1"
    assert [item["name"] for item in document["invariants"]] == [item.name for item in CHECKS]
    assert {item["level"] for item in document["invariants"]} == {"off", "warn", "strict"}
    assert "idle.units_held" in table.stdout
