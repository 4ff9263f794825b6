"""Other users: who is allowed attaches, who is not is told so by name."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon_process import serving

OTHER_UID = 54321

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a path that every user can reach, as the test folders cannot be."""
    parent = Path(tempfile.mkdtemp(prefix="kvd-users-"))
    parent.chmod(0o711)
    yield parent / "run"
    shutil.rmtree(parent)


def _asked_as(uid: int, path: Path) -> bytes:
    """Connect to the descriptor socket as another user and return what it says first."""
    program = (
        "import os, socket, sys;"
        "os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]));"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "s.settimeout(10); s.connect(sys.argv[2]); sys.stdout.buffer.write(s.recv(65536))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, str(uid), str(path)],
        capture_output=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def test_an_allowed_user_gets_a_ticket_and_another_one_a_refusal(open_folder: Path) -> None:
    with serving(open_folder, "--allowed-uids", str(OTHER_UID)) as daemon:
        path = Path(f"{daemon.socket_path}.fd")
        assert b"ticket" in _asked_as(OTHER_UID, path)
        assert f"user {OTHER_UID + 1} is not allowed".encode() in _asked_as(OTHER_UID + 1, path)


def test_without_allowed_users_nobody_else_reaches_the_sockets(open_folder: Path) -> None:
    with serving(open_folder) as daemon:
        path = Path(f"{daemon.socket_path}.fd")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
