"""Every registered invariant of the client, broken by hand and found by exactly its name."""

import os
from collections.abc import Callable
from contextlib import closing

import msgspec
import numpy as np
import pytest

from kvd.alloc.checks import CHECKS, Side
from kvd.testing.small_rank import PLAN, SmallRank, outcome
from kvd_client.book import RequestBook
from kvd_client.calls import Call
from kvd_client.device.cuda.device import CudaDevice
from kvd_client.device.fences import FencePage, LaneNumber, create_fence_page
from kvd_client.device.host.device import HostDevice
from kvd_client.device.redo import redo
from kvd_client.ids import check_maps_span
from kvd_client.results import Columns, Int64s
from kvd_client.steps import StepBook
from kvd_client.tables import TableMirror
from kvd_proto.codec import decode_reply, encode
from kvd_proto.control import Header, MessageKind
from kvd_proto.errors import KvdError
from kvd_proto.operations import Admit, Standing
from kvd_proto.outcomes import (
    OWN_PROGRAM,
    AdmitResult,
    BatchReply,
    Column,
    Done,
    Entry,
)
from tests.client.cuda_fake import FakeDriver
from tests.client.engine_daemon import (
    Answer,
    EngineDaemon,
    admit_three_tokens_each,
    build_storage,
)


def _ids(*values: int) -> Int64s:
    return np.array(values, dtype=np.int64)


def rows_match() -> None:
    book = RequestBook(8)
    for row in (1, 2):
        call = Call(Admit(b"", b"", b""), b"", ids=_ids(5))
        columns = Columns(_ids(0, row, 8, 8), (1, 1, 1, 1))
        book.note(call, AdmitResult(Column(0), Column(1), Column(2), Column(3)), columns)
    book.check()


def standing_known() -> None:
    book = RequestBook(8)
    book.note(Call(Standing(), b"", ids=_ids(5)), Done(), Columns(_ids(), ()))
    book.check()


def in_order() -> None:
    steps = StepBook(follows=False)
    steps.launched = 2
    steps.check()


def queue_until_recorded() -> None:
    with EngineDaemon().attach() as client, client.launch():
        client.session.steps.open_position += 1
        client.check()


def event_fresh() -> None:
    stream = HostDevice().stream("a")
    steps = StepBook(follows=False, in_flight_max=2)
    end = stream.record()
    for step in (1, 2):
        steps.begin(step, 0)
        steps.record(end)


def cursor() -> None:
    daemon = EngineDaemon()

    def skip_one(rank: int, header: Header, body: bytes) -> list[Answer] | None:
        if header.kind is not MessageKind.BATCH:
            return None
        ((answer, reply),) = daemon.serve(rank, header, body)
        found = decode_reply(reply)
        return [(answer, encode(BatchReply(found.position + 1, found.entries)))]

    with daemon.attach() as client:
        daemon.hook = skip_one
        with client.batch() as batch:
            batch.idle()


def one_outstanding() -> None:
    daemon = EngineDaemon()
    with daemon.attach() as client:
        daemon.hook = lambda rank, header, body: [] if header.kind is MessageKind.PING else None
        with pytest.MonkeyPatch.context() as patch:
            next(client.session.ping())
            patch.setattr(client.session, "settle", lambda: iter(()))
            try:
                next(client.session.ping())
            finally:
                daemon.hook = None


def cursor_gapless() -> None:
    SmallRank().applier.apply(3, outcome())


def redo_gapless() -> None:
    rank = SmallRank()
    rank.applier.apply_reply(1, [outcome(), outcome()])
    rank.settle()
    redo(
        device=rank.device,
        memory=rank.memory,
        plan=PLAN,
        stream=rank.stream,
        first_position=9,
        entries=[Entry(OWN_PROGRAM, 0, 0, outcome())],
    )


def resolved_once() -> None:
    steps = StepBook(follows=False)
    steps.begin(1, 0)
    steps.declare_reads()
    steps.check_readable("block_table")


def maps_span() -> None:
    plan = build_storage().storage
    maps = list(plan.region.band_maps)
    maps[1] = msgspec.structs.replace(maps[1], entry_count=plan.virtual_page_count - 1)
    region = msgspec.structs.replace(plan.region, band_maps=tuple(maps))
    check_maps_span(msgspec.structs.replace(plan, region=region))


def write_bound() -> None:
    mirror = TableMirror(build_storage().storage)
    mirror.write_slots(mirror.token_band("full"), _ids(1), _ids(0), _ids(1))


def submitted() -> None:
    fd = create_fence_page("fence")
    with closing(FencePage(fd)) as page:
        os.close(fd)
        stream = CudaDevice(FakeDriver()).stream("a", page.lane(0))
        page.lane(4).begin()
        stream.wait_lane(page.lane(4), LaneNumber(1), 2)


def match_books() -> None:
    with EngineDaemon().attach() as client:
        admit_three_tokens_each(client, [1])
        client.check_tables()
        client.stream.synchronize(5_000)
        start_bytes = client.plan.region.band_maps[-1].offset_bytes
        np.frombuffer(client.memory.buffer, "<i4", 1, start_bytes)[0] = 1
        client.check_tables()


BREAKERS: dict[str, Callable[[], None]] = {
    "book.rows_match": rows_match,
    "book.standing_known": standing_known,
    "steps.in_order": in_order,
    "step.queue_until_recorded": queue_until_recorded,
    "step.event_fresh": event_fresh,
    "session.cursor": cursor,
    "session.one_outstanding": one_outstanding,
    "stub.cursor_gapless": cursor_gapless,
    "stub.redo_gapless": redo_gapless,
    "ids.resolved_once": resolved_once,
    "ids.maps_span": maps_span,
    "tables.write_bound": write_bound,
    "fence.submitted": submitted,
    "tables.match_books": match_books,
}
NAMES = [check.name for check in CHECKS if check.side is Side.CLIENT]


def test_every_check_of_the_client_is_broken_here() -> None:
    assert set(BREAKERS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_is_broken_by_hand_is_found_by_its_name(name: str) -> None:
    with pytest.raises(KvdError) as caught:
        BREAKERS[name]()
    assert caught.value.message.startswith(f"{name}: ")
