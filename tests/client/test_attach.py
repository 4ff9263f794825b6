"""Attaching over real sockets: what goes wrong has one clear sentence, what is lost is found."""

import asyncio
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from msgspec import structs

from kvd_client import (
    AttachError,
    Client,
    ClosedError,
    DeadlineError,
    DeviceError,
    PoisonedError,
    ReplyError,
    UnreachableError,
    UsageError,
    aio,
    attach,
)
from kvd_client.hello import read_config
from kvd_proto.codec import decode_control, decode_header, encode
from kvd_proto.control import ErrorReply, Header, Hello, MessageKind, Welcome
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import DeclaredConfig
from tests.client.engine_daemon import LAYERS, SIZING, EngineDaemon
from tests.client.host_parts import Gate
from tests.client.socket_daemon import TICKET, SocketDaemon


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kvd-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def server(folder: Path) -> Iterator[SocketDaemon]:
    server = SocketDaemon(folder / "kvd.sock", EngineDaemon())
    yield server
    server.stop()


def attach_to(server: SocketDaemon, deadline_ms: int = 5_000) -> Client:
    return attach(
        f"ipc://{server.path}", group="g", declare=LAYERS, sizing=SIZING, deadline_ms=deadline_ms
    )


def admit(kv: Client) -> None:
    with kv.batch() as batch:
        batch.admit([1], prompt_tokens=[3], new_tokens_max=[30], take_tokens=[3])


def refuse(code: ErrorCode, message: str) -> list[list[bytes]]:
    reply = ErrorReply(code=code.value, message=message)
    return [[encode(Header(MessageKind.ERROR)), encode(reply)]]


def test_attach_over_sockets_maps_memory_and_serves_batches(server: SocketDaemon) -> None:
    with attach_to(server) as kv:
        admit(kv)
        kv.ping()
        assert kv.lengths([1]).tolist() == [3]
        assert kv.arena_array().nbytes == kv.plan.arena_bytes
        assert (kv.epoch, kv.incarnation, kv.step) == (7, 1, 0)


def test_the_hello_says_who_and_what(server: SocketDaemon) -> None:
    hellos: list[Hello] = []

    def spy(header: bytes, body: bytes) -> list[list[bytes]] | None:
        if decode_header(header).kind is MessageKind.HELLO:
            hellos.append(decode_control(body))
        return None

    server.raw = spy
    attach(f"{server.path}", group="g", declare={"b": 1, "a": 2}, draft=b"{}").close()

    (hello,) = hellos
    assert hello.ticket == TICKET
    assert hello.declare == DeclaredConfig(
        config_json=b'{"a":2,"b":1}', draft_config_json=b"{}", name="g"
    )
    assert hello.pid > 0
    assert hello.started_at.isdigit()


def test_the_asyncio_client_works_over_sockets(server: SocketDaemon) -> None:
    async def scenario() -> None:
        client = await aio.attach(f"ipc://{server.path}", group="g", declare=LAYERS, sizing=SIZING)
        async with client as kv:
            async with kv.batch() as batch:
                batch.admit([1], prompt_tokens=[3], new_tokens_max=[30], take_tokens=[3])
            await kv.ping()
            assert kv.lengths([1]).tolist() == [3]

    asyncio.run(scenario())


def test_without_a_daemon_the_error_says_where_and_what_to_do(folder: Path) -> None:
    with pytest.raises(UnreachableError, match=r"no daemon answers at .*kvd serve --socket"):
        attach(f"ipc://{folder}/kvd.sock", group="g", declare=LAYERS)


def test_a_socket_that_a_dead_daemon_left_is_no_daemon(server: SocketDaemon, folder: Path) -> None:
    server.stop()

    with pytest.raises(UnreachableError, match="refused"):
        attach(f"ipc://{folder}/kvd.sock", group="g", declare=LAYERS)


@pytest.mark.parametrize(
    ("address", "culprit"),
    [("tcp://localhost:5555", "tcp"), ("", "empty"), ("ipc:///" + "x" * 120, "124 bytes")],
)
def test_an_address_that_cannot_work_is_refused(address: str, culprit: str) -> None:
    with pytest.raises(UsageError, match=culprit):
        attach(address, group="g", declare=LAYERS)


def test_a_refused_hello_has_the_daemons_sentence(server: SocketDaemon) -> None:
    server.raw = lambda header, body: refuse(ErrorCode.BAD_MODEL, "layer 7 has no heads")

    with pytest.raises(AttachError, match="layer 7 has no heads") as caught:
        attach_to(server)

    assert caught.value.code is ErrorCode.BAD_MODEL


def test_a_wrong_version_names_both_ranges(server: SocketDaemon) -> None:
    server.raw = lambda header, body: refuse(ErrorCode.BAD_VERSION, "this daemon speaks 8 to 9")

    with pytest.raises(AttachError, match=r"speaks 8 to 9 .*this client speaks versions 4 to 4"):
        attach_to(server)


def test_a_version_that_was_not_offered_is_refused(server: SocketDaemon) -> None:
    def newer(header: bytes, body: bytes) -> list[list[bytes]] | None:
        ((answer, welcome),) = server.daemon.answer(0, decode_header(header), body)
        decoded = decode_control(welcome)
        assert isinstance(decoded, Welcome)
        return [[encode(answer), encode(structs.replace(decoded, version=9))]]

    server.raw = newer
    with pytest.raises(AttachError, match="version 9"):
        attach_to(server)


def test_a_welcome_that_does_not_come_ends_at_the_deadline(server: SocketDaemon) -> None:
    server.raw = lambda header, body: []

    with pytest.raises(DeadlineError, match="50 ms"):
        attach_to(server, deadline_ms=50)


@pytest.mark.parametrize("answer", [[b"\xc1", b"\xc1"], [encode(Header(MessageKind.ACK)), b"\xc0"]])
def test_an_unreadable_welcome_is_an_error_of_ours(
    server: SocketDaemon, answer: list[bytes]
) -> None:
    server.raw = lambda header, body: [answer]

    with pytest.raises(ReplyError):
        attach_to(server)


def test_an_answer_with_another_number_of_frames_poisons(server: SocketDaemon) -> None:
    with attach_to(server) as kv:
        server.raw = lambda header, body: [[header, body, b"third"]]
        with pytest.raises(ReplyError, match="3 frames"):
            kv.ping()
        server.raw = None

        with pytest.raises(PoisonedError):
            kv.ping()


@pytest.mark.case("125")
def test_a_daemon_that_ends_is_noticed_at_once(server: SocketDaemon) -> None:
    kv = attach_to(server, deadline_ms=60_000)
    server.raw = lambda header, body: []
    server.received.clear()

    def end() -> None:
        server.received.wait(5)
        server.stop()

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(UnreachableError, match="hung up"):
        kv.ping()
    ender.join()
    kv.close()


def test_the_asyncio_client_notices_the_end_of_the_daemon_too(server: SocketDaemon) -> None:
    async def scenario() -> None:
        kv = await aio.attach(f"ipc://{server.path}", group="g", declare=LAYERS, sizing=SIZING)
        server.raw = lambda header, body: []
        server.received.clear()
        task = asyncio.create_task(kv.ping())
        await asyncio.to_thread(server.received.wait, 5)
        await asyncio.to_thread(server.stop)
        with pytest.raises(UnreachableError, match="hung up"):
            await task
        await kv.close()

    asyncio.run(scenario())


def test_an_asyncio_answer_that_does_not_come_ends_at_the_deadline(server: SocketDaemon) -> None:
    async def scenario() -> None:
        kv = await aio.attach(
            f"ipc://{server.path}", group="g", declare=LAYERS, sizing=SIZING, deadline_ms=50
        )
        server.raw = lambda header, body: []
        with pytest.raises(DeadlineError, match="50 ms"):
            await kv.ping()
        await kv.close()

    asyncio.run(scenario())


def test_a_signal_during_the_wait_loses_nothing(server: SocketDaemon) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    kept: list[list[bytes]] = []

    def keep(header: bytes, body: bytes) -> list[list[bytes]] | None:
        if decode_header(header).kind is MessageKind.BATCH and not kept:
            answers = server.daemon.answer(0, decode_header(header), body)
            kept.extend([encode(one), content] for one, content in answers)
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            return []
        return None

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with attach_to(server) as kv:
            server.raw = keep
            with pytest.raises(KeyboardInterrupt):
                admit(kv)
            assert kv.applied == 0
            (message,) = kept
            server.push(message)

            kv.ping()

            assert kv.applied == 2
            assert kv.lengths([1]).tolist() == [3]
            assert server.daemon.incarnation.log.end_position == 2
    finally:
        signal.signal(signal.SIGALRM, before)


def test_close_is_final_and_harmless_when_repeated(server: SocketDaemon) -> None:
    kv = attach_to(server)
    kv.close()
    kv.close()

    with pytest.raises(ClosedError):
        kv.ping()
    with pytest.raises(ClosedError):
        kv.batch().__enter__()


def test_whoever_closes_says_that_it_is_done_with_its_memory(server: SocketDaemon) -> None:
    attach_to(server).close()

    assert server.parted.wait(5)


def test_it_is_said_only_when_the_streams_ran_dry() -> None:
    daemon, gate = EngineDaemon(), Gate()
    kv = daemon.attach()
    kv.stream.submit(gate)
    kv.deadline_ms = 100

    with pytest.raises(DeviceError, match="did not end within 100 ms"):
        kv.close()

    assert daemon.transports[0].closed
    assert daemon.transports[0].let_go_count == 0
    gate.open()


def test_leaving_the_client_by_an_exception_closes_it(server: SocketDaemon) -> None:
    with pytest.raises(ZeroDivisionError), attach_to(server) as kv:
        _ = 1 // 0

    with pytest.raises(ClosedError):
        kv.ping()


def test_a_configuration_is_read_from_a_file_or_its_folder(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"x": 1}')

    assert read_config(folder) == read_config(str(folder / "config.json")) == b'{"x": 1}'


@pytest.mark.parametrize("declare", ["/nowhere/config.json", {"x": object()}])
def test_a_configuration_that_cannot_be_read_is_named(declare: str | dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"nowhere|JSON"):
        attach("ipc:///tmp/x", group="g", declare=declare)
