"""Who keeps the memory, and what the service manager is told."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvd_client.errors import AttachError
from tests.e2e.daemon_process import (
    DaemonProcess,
    children_of,
    command,
    environment,
    errors_of,
    keepers_of_memory,
    run_kvd,
    serving,
    wait_ended,
    wait_until,
)
from tests.e2e.ranks import Ranks, admit

Start = Callable[..., DaemonProcess]

pytestmark = pytest.mark.slow


def test_readiness_and_the_end_are_told_to_the_service_manager(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = str(folder.with_name("notify"))
        manager.bind(address)
        manager.settimeout(20)

        with serving(folder, extra={"NOTIFY_SOCKET": address}) as daemon:
            assert manager.recv(1000).decode().splitlines()[0] == "READY=1"
            daemon.signal(signal.SIGTERM)
            assert manager.recv(1000).decode() == "STOPPING=1"
            assert daemon.wait() == 0


def test_a_service_manager_that_is_gone_is_named_and_nothing_is_called_ready(folder: Path) -> None:
    gone = str(folder.with_name("nobody"))

    done = run_kvd("serve", "--runtime-dir", str(folder), extra={"NOTIFY_SOCKET": gone})

    assert done.returncode != 0
    assert gone in errors_of(done.stderr)[0]
    assert done.stdout == ""
    assert not folder.exists() or list(folder.iterdir()) == []


def test_memory_in_an_external_holder_is_given_back_when_ranks_leave(
    folder: Path, group: str
) -> None:
    with holding(folder), serving(folder, "--holder", "external") as daemon:
        assert children_of(daemon.pid) == []
        with Ranks(daemon.address, group) as ranks:
            admit(ranks.attach(), [1])
            assert keepers_of_memory(f"kvd-{group}.1.0.0-arena")

        wait_until("the memory is gone", lambda: not keepers_of_memory(f"kvd-{group}."))


def test_an_external_holder_outlives_the_daemon_which_then_starts_cold(
    folder: Path, group: str
) -> None:
    group = f"{group}-{os.getpid()}"
    with holding(folder) as holder:
        with serving(folder, "--holder", "external") as daemon:
            with Ranks(daemon.address, group) as ranks:
                ranks.attach()
                daemon.signal(signal.SIGKILL)
                daemon.wait()
            assert [one.split(":")[0] for one in keepers_of_memory(f"kvd-{group}.1.0.0-arena")] == [
                str(holder.pid)
            ]

        with serving(folder, "--holder", "external") as daemon:
            assert f"event=cold_start dropped={group}.1.0.0/arena" in daemon.log()
            assert keepers_of_memory(f"kvd-{group}.") == []


def test_without_its_holder_a_daemon_starts_no_group_but_lives_on(start: Start) -> None:
    daemon = start()
    (holder,) = daemon.holder_pids
    with Ranks(daemon.address, "early") as early:
        client = early.attach()
        os.kill(holder, signal.SIGKILL)
        wait_ended(holder)

        with (
            Ranks(daemon.address, "late") as late,
            pytest.raises(AttachError, match=rf"own holder \(pid {holder}\).*restart the daemon"),
        ):
            late.attach()

        admit(client, [1])
    wait_until("the early group is gone", lambda: daemon.group("early") is None)
    assert "event=release_problem group=early" in daemon.log()
    assert daemon.stop() == 0


def test_a_second_daemon_on_a_holder_is_refused_and_the_first_keeps_its_memory(
    folder: Path, group: str
) -> None:
    group = f"{group}-{os.getpid()}"
    with holding(folder) as holder, serving(folder, "--holder", "external") as daemon:
        with Ranks(daemon.address, group) as ranks:
            admit(ranks.attach(), [1])

            second = run_kvd(
                *("serve", "--runtime-dir", str(folder.with_name("second"))),
                *("--holder", "external", "--hold-socket", str(folder / "hold.sock")),
            )

            assert second.returncode != 0
            (error,) = errors_of(second.stderr)
            assert f"process {daemon.pid} uses it" in error
            assert any(
                one.startswith(f"{holder.pid}:")
                for one in keepers_of_memory(f"kvd-{group}.1.0.0-arena")
            )
        wait_until("the memory is gone", lambda: not keepers_of_memory(f"kvd-{group}."))
        assert "release_problem" not in daemon.log()


def test_a_daemon_goes_on_with_a_holder_that_was_killed_and_started_again(
    folder: Path, group: str
) -> None:
    group = f"{group}-{os.getpid()}"
    with (
        ExitStack() as stack,
        holding(folder) as first,
        serving(folder, "--holder", "external") as daemon,
    ):
        with Ranks(daemon.address, f"{group}-early") as early:
            client = early.attach()
            first.kill()
            first.wait()
            with (
                Ranks(daemon.address, f"{group}-lost") as lost,
                pytest.raises(AttachError, match=r"no holder answers at .*kvd hold"),
            ):
                lost.attach()
            second = stack.enter_context(holding(folder))

            with Ranks(daemon.address, f"{group}-late") as late:
                admit(late.attach(), [1])
                kept = keepers_of_memory(f"kvd-{group}-early.1.0.0-arena")
                assert any(one.startswith(f"{second.pid}:") for one in kept)
            admit(client, [1])

        wait_until("the memory is gone", lambda: not keepers_of_memory(f"kvd-{group}-"))
        assert daemon.log().count("event=holder_lost") == 1
        assert daemon.log().count("event=holder_back") == 1
        assert "release_problem" not in daemon.log()


def test_a_missing_holder_is_named_with_its_path(folder: Path) -> None:
    done = run_kvd("serve", "--runtime-dir", str(folder), "--holder", "external")

    assert done.returncode != 0
    (error,) = errors_of(done.stderr)
    assert str(folder / "hold.sock") in error
    assert "kvd hold" in error


@contextmanager
def holding(folder: Path) -> Generator["subprocess.Popen[str]"]:
    """Run ``kvd hold`` in the folder of a daemon."""
    folder.mkdir(mode=0o700, exist_ok=True)
    arguments = command("hold", "--socket", str(folder / "hold.sock"))
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()
