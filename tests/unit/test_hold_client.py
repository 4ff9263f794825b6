"""The daemon's side of a holder that is lost and comes back."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvd.errors import ServeError
from kvd.hold.client import ExternalHolder, connect
from kvd.hold.endpoint import open_endpoint
from kvd.hold.message import HOLD_VERSION, Greeting, HeldMemory, encode
from kvd.hold.spawn import spawn_holder
from kvd.hold.store import create_nonce
from kvd_client.device import descriptors
from kvd_proto.errors import ErrorCode
from tests.unit.test_hold_server import DEADLINE_S, RunningHolder

SIZE_BYTES = 4096


class Restartable:
    """A holder that can be stopped and started anew at its path, a client of it, and its log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder: RunningHolder | None = RunningHolder(path)
        self.lines: list[str] = []
        self.client = connect(path, log=self.lines.append)
        self._open: list[int] = []

    def stop(self) -> None:
        assert self.holder is not None
        self.holder.stop()
        self.holder = None

    def restart(self) -> None:
        if self.holder is not None:
            self.stop()
        self.holder = RunningHolder(self.path)

    def put(self, name: str, content: bytes = b"mine") -> int:
        """Put new memory and return its descriptor, which stays open until the end."""
        descriptor = descriptors.create_memory("arena", SIZE_BYTES)
        self._open.append(descriptor)
        os.pwrite(descriptor, content, 0)
        self.client.put(name, descriptor, SIZE_BYTES)
        return descriptor

    def events(self) -> list[str]:
        return [line.split()[0].removeprefix("event=") for line in self.lines]

    def close(self) -> None:
        self.client.close()
        if self.holder is not None:
            self.holder.stop()
        descriptors.close_all(self._open)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Restartable]:
    made = Restartable(tmp_path / "hold.sock")
    yield made
    made.close()


def content_of(client: ExternalHolder, name: str) -> bytes:
    descriptor = client.get(name)
    try:
        return os.pread(descriptor, 4, 0)
    finally:
        os.close(descriptor)


def test_the_next_call_reaches_a_restarted_holder(setup: Restartable) -> None:
    nonce = setup.client.nonce()
    setup.restart()

    setup.put("late")

    assert setup.client.held() == (HeldMemory("late", SIZE_BYTES),)
    assert setup.client.nonce() != nonce


def test_a_restarted_holder_gets_again_what_is_live_and_not_what_was_dropped(
    setup: Restartable,
) -> None:
    setup.put("dropped")
    setup.put("live", b"live")
    setup.client.drop("dropped")
    setup.restart()

    assert [item.name for item in setup.client.held()] == ["live"]
    assert content_of(setup.client, "live") == b"live"
    assert "same_holder=false restored_count=1" in setup.lines[-1]


def test_loss_and_return_are_one_event_each_however_many_calls_failed(setup: Restartable) -> None:
    setup.stop()
    for _ in range(3):
        with pytest.raises(ServeError, match=f"no holder answers at {setup.path}") as lost:
            setup.client.held()
        assert lost.value.code is ErrorCode.UNREACHABLE
    assert setup.events() == ["holder_lost"]

    setup.restart()
    setup.client.held()
    setup.client.held()

    assert setup.events() == ["holder_lost", "holder_back"]


def greet_once(listener: socket.socket, accepted: list[socket.socket]) -> None:
    """Greet one connection and never answer it."""
    sock, _ = listener.accept()
    nonce = create_nonce()
    descriptors.send_message(sock, encode(Greeting(HOLD_VERSION)), [nonce])
    os.close(nonce)
    accepted.append(sock)


def garbage(_: object) -> bytes:
    """Encode nothing that a holder can read."""
    return b"\xc1garbage"


def drop_at_once(setup: Restartable) -> None:
    """Leave it to the drop to find the holder lost."""


def drop_after_a_call(setup: Restartable) -> None:
    """Have another call connect again before the drop."""
    setup.client.held()


@pytest.mark.parametrize("before", [drop_at_once, drop_after_a_call])
def test_dropping_what_the_lost_holder_kept_is_no_error(
    setup: Restartable, before: Callable[[Restartable], None]
) -> None:
    setup.put("arena")
    setup.restart()
    before(setup)

    setup.client.drop("arena")

    assert setup.client.held() == ()


def test_memory_closed_before_its_drop_is_named_not_restored_and_its_drop_is_no_error(
    setup: Restartable,
) -> None:
    descriptor = descriptors.create_memory("arena", SIZE_BYTES)
    setup.client.put("closed", descriptor, SIZE_BYTES)
    os.close(descriptor)
    setup.put("live")
    setup.restart()

    assert [item.name for item in setup.client.held()] == ["live"]
    assert setup.events() == ["holder_lost", "holder_not_restored", "holder_back"]
    assert "name=closed" in setup.lines[1]
    setup.client.drop("closed")


def test_a_name_nobody_put_is_an_error_even_after_a_loss(setup: Restartable) -> None:
    setup.restart()

    with pytest.raises(ServeError, match="nothing is kept as 'other'"):
        setup.client.drop("other")


def test_what_another_daemon_left_meanwhile_is_dropped_and_ours_put_in_its_place(
    setup: Restartable,
) -> None:
    setup.put("same", b"ours")
    setup.restart()
    other = connect(setup.path)
    memory = descriptors.create_memory("arena", SIZE_BYTES)
    os.pwrite(memory, b"else", 0)
    other.put("same", memory, SIZE_BYTES)
    other.put("foreign", memory, SIZE_BYTES)
    other.close()
    os.close(memory)

    assert content_of(setup.client, "same") == b"ours"
    assert [item.name for item in setup.client.held()] == ["same"]
    assert setup.events().count("holder_dropped") == 2


def test_a_holder_that_serves_another_daemon_now_is_not_taken_from_it(setup: Restartable) -> None:
    setup.restart()
    other = connect(setup.path)

    with pytest.raises(ServeError, match=f"process {os.getpid()} uses it") as refused:
        setup.put("arena")

    assert refused.value.code is ErrorCode.BUSY
    assert other.held() == ()
    other.close()


def test_a_holder_that_lost_only_the_connection_still_keeps_what_is_live(
    setup: Restartable, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.put("live", b"live")
    # What breaks the rules of the wire makes the holder hang up.
    monkeypatch.setattr("kvd.hold.client.encode", garbage)
    with pytest.raises(ServeError, match="cannot be decoded"):
        setup.client.get("live")
    monkeypatch.undo()

    setup.client.held()

    assert "same_holder=true restored_count=0" in setup.lines[-1]
    assert content_of(setup.client, "live") == b"live"


def test_a_holder_that_hangs_is_asked_once_a_call(tmp_path: Path) -> None:
    endpoint = open_endpoint(tmp_path / "hold.sock", what="holder")
    accepted: list[socket.socket] = []
    greeter = threading.Thread(target=greet_once, args=(endpoint.listener, accepted), daemon=True)
    greeter.start()
    lines: list[str] = []
    client = connect(endpoint.path, timeout_ms=1000, log=lines.append)
    greeter.join(DEADLINE_S)

    with pytest.raises(ServeError, match="did not answer within 1000 ms") as late:
        client.held()

    assert late.value.code is ErrorCode.TIMED_OUT
    assert len(lines) == 1
    endpoint.listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        endpoint.listener.accept()
    accepted[0].close()
    endpoint.close()


def test_a_daemon_without_its_own_holder_is_told_to_restart_every_time() -> None:
    lines: list[str] = []
    holder = spawn_holder(log=lines.append)
    assert holder.process is not None
    pid = holder.process.pid
    os.kill(pid, signal.SIGKILL)
    holder.process.wait()

    for _ in range(2):
        with pytest.raises(ServeError, match=rf"own holder \(pid {pid}\).*restart the daemon"):
            holder.held()

    assert len(lines) == 1
    assert lines[0].startswith("event=holder_lost problem=")
    holder.close()


def test_memory_of_a_gpu_is_handed_in_anew_for_its_files_all_look_alike(setup: Restartable) -> None:
    """A holder that kept another one of the driver's files under the name would not be noticed."""
    descriptor = os.open("/dev/null", os.O_RDONLY)
    setup.client.put("g/0/0/arena", descriptor, 1 << 30)
    assert setup.client.held() == (HeldMemory("g/0/0/arena", 1 << 30),)

    setup.restart()

    assert setup.client.held() == (HeldMemory("g/0/0/arena", 1 << 30),)
    assert "restored_count=1" in setup.lines[-1]
    kept = setup.client.get("g/0/0/arena")
    assert os.path.samestat(os.fstat(kept), os.fstat(descriptor))
    descriptors.close_all([kept, descriptor])
