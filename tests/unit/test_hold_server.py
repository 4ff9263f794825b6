"""Holder and client over a real socket."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvd.errors import ServeError
from kvd.hold import server as hold_server
from kvd.hold.client import ExternalHolder, HolderClient, connect
from kvd.hold.endpoint import open_endpoint
from kvd.hold.message import (
    Answer,
    Drop,
    Get,
    Greeting,
    HeldMemory,
    HoldVersion,
    Kept,
    ListHeld,
    Put,
    Refused,
    Request,
    decode_answer,
    decode_request,
    encode,
)
from kvd.hold.server import HolderServer
from kvd.hold.store import create_nonce
from kvd_client.device import descriptors
from kvd_proto.errors import ErrorCode, FrameError

DEADLINE_S = 30


class RunningHolder:
    """A holder whose loop runs in a thread of the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.endpoint = open_endpoint(path, what="holder")
        self.server = HolderServer(self.endpoint.listener)
        self.kept_count = -1
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.kept_count = self.server.run(self._stopped)

    def stop(self) -> None:
        self._stop.send(b"x")
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self.server.close()
        self.endpoint.close()
        self._stop.close()
        self._stopped.close()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[RunningHolder]:
    holder = RunningHolder(tmp_path / "hold.sock")
    yield holder
    holder.stop()


@pytest.fixture
def client(holder: RunningHolder) -> Iterator[ExternalHolder]:
    client = connect(holder.path)
    yield client
    client.close()


def new_memory(content: bytes) -> int:
    descriptor = descriptors.create_memory("arena", 4096)
    os.pwrite(descriptor, content, 0)
    return descriptor


def test_contents_come_back_over_another_connection(
    holder: RunningHolder, client: ExternalHolder
) -> None:
    descriptor = new_memory(b"kept")
    client.put("g/0/0/arena", descriptor, 4096)
    os.close(descriptor)
    client.close()

    successor = connect(holder.path)
    descriptor = successor.get("g/0/0/arena")

    assert os.pread(descriptor, 4, 0) == b"kept"
    assert successor.held() == (HeldMemory("g/0/0/arena", 4096),)
    os.close(descriptor)
    successor.close()


def test_put_leaves_the_callers_descriptor_open(client: ExternalHolder) -> None:
    descriptor = new_memory(b"mine")

    client.put("arena", descriptor, 4096)

    assert os.pread(descriptor, 4, 0) == b"mine"
    os.close(descriptor)


def test_a_dropped_name_is_gone(client: ExternalHolder) -> None:
    descriptor = new_memory(b"x")
    client.put("arena", descriptor, 4096)
    os.close(descriptor)

    client.drop("arena")

    assert client.held() == ()
    with pytest.raises(ServeError, match="nothing is kept as 'arena'"):
        client.get("arena")


def test_a_refusal_leaves_the_connection_usable_and_no_descriptor_behind(
    client: ExternalHolder,
) -> None:
    descriptor = new_memory(b"x")
    client.put("arena", descriptor, 4096)
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(ServeError, match="kept already") as refused:
        client.put("arena", descriptor, 4096)
    with pytest.raises(ServeError, match="8192 bytes, its descriptor has 4096"):
        client.put("other", descriptor, 8192)

    assert refused.value.code is ErrorCode.BAD_ARGUMENT
    assert client.held() == (HeldMemory("arena", 4096),)
    assert set(os.listdir("/proc/self/fd")) == before
    os.close(descriptor)


def test_a_long_listing_arrives_in_parts(
    client: ExternalHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_server, "LISTING_COUNT_MAX", 2)
    descriptor = new_memory(b"x")
    names = [f"n{index}" for index in range(5)]
    for name in names:
        client.put(name, descriptor, 4096)
    os.close(descriptor)

    assert [held.name for held in client.held()] == names


def test_a_daemon_and_its_successor_see_one_nonce(
    holder: RunningHolder, client: ExternalHolder
) -> None:
    client.close()
    successor = connect(holder.path)

    assert client.nonce() == successor.nonce()
    assert len(client.nonce()) == 32
    successor.close()


def test_another_holder_has_another_nonce(client: ExternalHolder, tmp_path: Path) -> None:
    other = RunningHolder(tmp_path / "other.sock")
    stranger = connect(other.path)

    assert client.nonce() != stranger.nonce()
    stranger.close()
    other.stop()


def test_a_stopped_holder_tells_how_many_it_kept(tmp_path: Path) -> None:
    holder = RunningHolder(tmp_path / "hold.sock")
    client = connect(holder.path)
    descriptor = new_memory(b"x")
    client.put("arena", descriptor, 4096)
    os.close(descriptor)

    holder.stop()

    assert holder.kept_count == 1
    with pytest.raises(ServeError) as broken:
        client.held()
    assert broken.value.code is ErrorCode.UNREACHABLE
    client.close()


def test_no_holder_at_the_path_is_an_error_with_path_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "hold.sock"

    with pytest.raises(ServeError, match=f"no holder answers at {path} .*kvd hold") as missing:
        connect(path)

    assert missing.value.code is ErrorCode.UNREACHABLE


def test_another_user_is_refused(holder: RunningHolder, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)

    with pytest.raises(ServeError, match=f"serves uid {uid + 1}, not uid {uid}") as refused:
        connect(holder.path)

    assert refused.value.code is ErrorCode.FORBIDDEN


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(
    holder: RunningHolder, client: ExternalHolder
) -> None:
    descriptor = new_memory(b"mine")
    client.put("arena", descriptor, 4096)
    os.close(descriptor)

    with pytest.raises(ServeError, match=f"process {os.getpid()} uses it") as refused:
        connect(holder.path)

    assert refused.value.code is ErrorCode.BUSY
    assert client.held() == (HeldMemory("arena", 4096),)


def test_what_a_daemon_asked_last_is_done_before_its_successor_is_greeted(tmp_path: Path) -> None:
    endpoint = open_endpoint(tmp_path / "hold.sock", what="holder")
    server = HolderServer(endpoint.listener)
    here, there = descriptors.socket_pair()
    server.adopt(there)
    _, nonce = descriptors.receive_message(here, 1)
    # The successor knocks first, so that the holder's first round meets it before the end.
    successor = descriptors.connect(str(endpoint.path), timeout_ms=DEADLINE_S * 1000)
    descriptor = new_memory(b"x")
    descriptors.send_message(here, encode(Put("arena", 4096)), [descriptor])
    here.close()
    stop, stopped = socket.socketpair()
    loop = threading.Thread(target=server.run, args=(stopped,), daemon=True)
    loop.start()

    client = HolderClient(successor)

    assert client.held() == (HeldMemory("arena", 4096),)
    client.close()
    stop.send(b"x")
    loop.join(DEADLINE_S)
    server.close()
    endpoint.close()
    descriptors.close_all([descriptor, *nonce])
    stop.close()
    stopped.close()


def raw_answer(path: Path, payload: bytes, fds: list[int]) -> Answer:
    sock = descriptors.connect(str(path), timeout_ms=DEADLINE_S * 1000)
    _, nonce = descriptors.receive_message(sock, 1)
    descriptors.send_message(sock, payload, fds)
    answer, received = descriptors.receive_message(sock, 1)
    descriptors.close_all([*nonce, *received])
    sock.close()
    return decode_answer(answer)


@pytest.mark.parametrize(
    ("request_bytes", "fds_count", "code", "message"),
    [
        (b"\xc1garbage", 0, ErrorCode.BAD_FRAME, "cannot be decoded"),
        (b"\xc1garbage", 1, ErrorCode.BAD_FRAME, "cannot be decoded"),
        (
            encode(Put("arena", 4096)),
            0,
            ErrorCode.BAD_ARGUMENT,
            "a Put brings 1 descriptors, not 0",
        ),
        (encode(ListHeld()), 1, ErrorCode.BAD_ARGUMENT, "a ListHeld brings 0 descriptors, not 1"),
        (encode(Get("arena")), 2, ErrorCode.BAD_FRAME, "more descriptors than the 1 expected"),
    ],
)
def test_a_request_against_the_rules_is_refused_and_leaves_nothing_behind(
    holder: RunningHolder,
    client: ExternalHolder,
    request_bytes: bytes,
    fds_count: int,
    code: ErrorCode,
    message: str,
) -> None:
    descriptor = new_memory(b"x")
    before = len(os.listdir("/proc/self/fd"))
    client.close()

    answer = raw_answer(holder.path, request_bytes, [descriptor] * fds_count)

    assert isinstance(answer, Refused)
    assert answer.code == code
    assert message in answer.message
    # A daemon is greeted only when the holder is done with the connection before.
    successor = connect(holder.path)
    assert successor.held() == ()
    assert len(os.listdir("/proc/self/fd")) == before
    successor.close()
    os.close(descriptor)


def test_a_holder_that_does_not_answer_times_out_and_stays_unusable() -> None:
    here, there = descriptors.socket_pair()

    with pytest.raises(ServeError, match="did not answer within 20 ms") as late:
        HolderClient(here, timeout_ms=20)

    assert late.value.code is ErrorCode.TIMED_OUT
    assert here.fileno() == -1
    there.close()


def test_a_holder_of_another_version_is_refused_with_both_versions() -> None:
    here, there = descriptors.socket_pair()
    nonce = create_nonce()
    descriptors.send_message(there, encode(Greeting(HoldVersion(99))), [nonce])

    with pytest.raises(ServeError, match="holder speaks version 99, this daemon 1") as refused:
        HolderClient(here)

    assert refused.value.code is ErrorCode.BAD_VERSION
    os.close(nonce)
    here.close()
    there.close()


def test_a_holder_that_ends_is_told_from_one_that_refuses() -> None:
    here, there = descriptors.socket_pair()
    there.close()

    with pytest.raises(ServeError) as broken:
        HolderClient(here)

    assert broken.value.code is ErrorCode.UNREACHABLE


@pytest.mark.parametrize(
    "request_",
    [Put("a", 1), ListHeld(3), Get("a"), Drop("a")],
    ids=lambda request: type(request).__name__,
)
def test_requests_survive_the_wire(request_: Request) -> None:
    assert decode_request(encode(request_)) == request_


def test_a_request_is_no_answer() -> None:
    with pytest.raises(FrameError, match="answer of"):
        decode_answer(encode(Get("a")))
    with pytest.raises(FrameError, match="request of"):
        decode_request(encode(Kept()))
