"""The holder's socket: one owner, tight modes, nothing stale in the way."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvd.errors import ServeError
from kvd.hold.endpoint import open_endpoint
from kvd_proto.errors import ErrorCode

DEADLINE_S = 30

OPEN_AND_DIE = """
import os, pathlib, signal, sys
from kvd.hold.endpoint import open_endpoint
endpoint = open_endpoint(pathlib.Path(sys.argv[1]), what="holder")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_directory_socket_and_lock_are_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "run" / "hold.sock"

    endpoint = open_endpoint(path, what="holder")

    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("hold.sock.lock").stat().st_mode) == 0o600
    endpoint.close()


def test_binding_leaves_the_umask_as_it_was(tmp_path: Path) -> None:
    before = os.umask(0o027)

    endpoint = open_endpoint(tmp_path / "hold.sock", what="holder")
    after = os.umask(before)

    assert after == 0o027
    endpoint.close()


def test_closing_takes_socket_and_lock_away(tmp_path: Path) -> None:
    endpoint = open_endpoint(tmp_path / "hold.sock", what="holder")

    endpoint.close()

    assert list(tmp_path.iterdir()) == []


def test_a_second_owner_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    path = tmp_path / "hold.sock"
    endpoint = open_endpoint(path, what="holder")

    with pytest.raises(ServeError, match=rf"another holder \(pid {os.getpid()}\)") as refused:
        open_endpoint(path, what="holder")

    assert refused.value.code is ErrorCode.BUSY
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
    endpoint.close()


def test_what_a_killed_owner_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "hold.sock"
    subprocess.run([sys.executable, "-c", OPEN_AND_DIE, str(path)], timeout=DEADLINE_S)
    assert path.exists()

    endpoint = open_endpoint(path, what="holder")

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
    endpoint.close()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)

    with pytest.raises(ServeError, match=rf"mode {mode:04o} .*\(mode 0700\)"):
        open_endpoint(shared / "hold.sock", what="holder")

    assert list(shared.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_refused_and_the_lock_is_free(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120)

    with pytest.raises(ServeError, match=f"cannot listen on {path}"):
        open_endpoint(path, what="holder")
    with pytest.raises(ServeError, match="cannot listen"):
        open_endpoint(path, what="holder")


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ServeError, match="cannot use"):
        open_endpoint(tmp_path / "file" / "hold.sock", what="holder")


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "hold.sock.lock").symlink_to(tmp_path / "target")

    with pytest.raises(ServeError, match="cannot open the lock file"):
        open_endpoint(tmp_path / "hold.sock", what="holder")
