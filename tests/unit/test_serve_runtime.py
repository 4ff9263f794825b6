"""The runtime directory, leftovers of earlier daemons, the lock, and the limit of open files."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvd.errors import ServeError
from kvd.serve.runtime import (
    CLIENTS_COUNT_MAX,
    DaemonLock,
    clear_socket,
    prepare_directory,
    raise_descriptor_limit,
)
from kvd_proto.errors import ErrorCode

HOLD = """
import sys
from pathlib import Path
from kvd.serve.runtime import DaemonLock
lock = DaemonLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """Leave the umask as it was: preparing a directory tightens it for good."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_missing_directory_is_made_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"

    prepare_directory(path)

    assert path.stat().st_mode & 0o777 == 0o700


def test_what_is_made_afterwards_is_for_this_user_alone(tmp_path: Path) -> None:
    prepare_directory(tmp_path / "run")

    made = tmp_path / "run" / "file"
    made.touch()

    assert made.stat().st_mode & 0o077 == 0


def test_a_directory_that_others_may_read_is_taken_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    prepare_directory(tmp_path)

    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_may_write_is_refused_with_its_mode(
    tmp_path: Path, mode: int
) -> None:
    tmp_path.chmod(mode)

    with pytest.raises(ServeError, match=f"mode {mode:04o}"):
        prepare_directory(tmp_path)


def test_a_directory_of_another_user_is_refused_with_both_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)

    with pytest.raises(ServeError, match=f"belongs to user {owner}, not to {owner + 1}"):
        prepare_directory(tmp_path)


def test_a_leftover_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.fspath(path))

    clear_socket(path)
    clear_socket(path)

    assert not path.exists()


def test_a_link_to_a_socket_is_no_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.fspath(tmp_path / "s"))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "s")

    with pytest.raises(ServeError, match=f"{link} is there already and is no socket"):
        clear_socket(link)

    assert link.is_symlink()


def test_a_lock_excludes_others_and_names_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = DaemonLock(path)

    with pytest.raises(ServeError, match=f"process {os.getpid()}") as taken:
        DaemonLock(path)

    assert taken.value.code is ErrorCode.BUSY
    lock.release()
    DaemonLock(path).release()
    assert not path.exists()


def test_a_lock_ends_with_its_process_and_its_file_means_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, os.fspath(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ServeError, match=f"process {other.pid}"):
            DaemonLock(path)
        other.kill()
        other.wait()
    assert path.exists()

    DaemonLock(path).release()


@pytest.mark.parametrize(
    ("hard", "clients"),
    [(69, 1), (1024, 192), (524_288, CLIENTS_COUNT_MAX), (resource.RLIM_INFINITY, 4096)],
)
def test_clients_are_as_many_as_open_files_allow(
    monkeypatch: pytest.MonkeyPatch, hard: int, clients: int
) -> None:
    limits = limit_open_files(monkeypatch, hard)

    assert raise_descriptor_limit() == clients
    assert limits == [(64, hard), (hard, hard)]


def test_too_few_open_files_for_one_client_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_open_files(monkeypatch, 68)

    with pytest.raises(ServeError, match="68 open files are allowed"):
        raise_descriptor_limit()


def limit_open_files(monkeypatch: pytest.MonkeyPatch, hard: int) -> list[tuple[int, int]]:
    """Play the kernel's limits; returns what they were set to, the newest last."""
    limits = [(64, hard)]

    def getrlimit(kind: int) -> tuple[int, int]:
        assert kind == resource.RLIMIT_NOFILE
        return limits[-1]

    def setrlimit(kind: int, wanted: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    return limits
