"""What an answer means: entries behind the cursor, each beside the operation it decides.

Nothing here changes anything. An answer that cannot be right raises ReplyError or DivergedError,
which the session takes for the end of this rank.
"""

from collections.abc import Sequence

from kvd_client.calls import Call
from kvd_client.errors import DivergedError, ReplyError
from kvd_proto.codec import decode_reply, digest_of
from kvd_proto.errors import ErrorCode, FrameError
from kvd_proto.outcomes import Entry


def fresh_entries(body: bytes, known_position: int) -> Sequence[Entry]:
    """Return the entries of a reply behind a position; raises ReplyError for a gap before them."""
    try:
        reply = decode_reply(body)
    except FrameError as error:
        raise ReplyError(error.message) from error
    repeated = known_position + 1 - reply.position
    if repeated < 0:
        raise ReplyError(
            f"session.cursor: position {known_position + 1} is next, entries from "
            f"{reply.position} came"
        )
    return reply.entries[repeated:] if repeated else reply.entries


def match_calls(
    entries: Sequence[Entry], program: int, calls: Sequence[Call], start_index: int, applied: int
) -> list[Call | None]:
    """Return the own operation of each entry, compared with what was decided.

    ``calls`` are the operations in flight, from ``start_index`` on. Raises ReplyError unless each
    of them is answered once and in order, and DivergedError for another operation than ours.
    """
    matched: list[Call | None] = []
    count = 0
    for entry in entries:
        if entry.program != program:
            matched.append(None)
            continue
        offset = entry.index - start_index
        if offset != count or offset >= len(calls):
            raise ReplyError(
                f"operation {entry.index} of program {program} came, this rank has "
                f"{len(calls)} operations from {start_index} in flight and met {count} of them"
            )
        compare(entry, calls[offset], applied)
        matched.append(calls[offset])
        count += 1
    if count != len(calls):
        raise ReplyError(f"a reply to {len(calls)} operations answers {count} of them")
    return matched


def compare(entry: Entry, call: Call, applied: int) -> None:
    """Raise DivergedError if another operation was decided than the one known here."""
    digest = digest_of(call.encoded)
    if digest != entry.digest:
        raise DivergedError(
            f"operation {entry.index} of program {entry.program} is {call.operation!r:.200} here "
            f"(digest {digest:016x}), another one was decided (digest {entry.digest:016x}); "
            f"nothing behind position {applied} was applied",
            code=ErrorCode.DIVERGED,
        )
