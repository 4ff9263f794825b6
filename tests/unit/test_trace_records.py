"""Lines of a trace, and files that are none."""

import io
from pathlib import Path

import pytest

from kvd.errors import FileError
from kvd.trace.records import (
    FORMAT,
    Cut,
    End,
    Entered,
    Ext,
    Gate,
    Head,
    Op,
    Res,
    Snap,
    entered_of,
    read_lines,
    read_trace,
)
from kvd_proto.codec import encode
from kvd_proto.operations import Free
from tests.stateful.ranks import int64s
from tests.unit.trace_parts import joined, records, traced

LINES = traced().splitlines(keepends=True)


def test_a_trace_is_a_head_then_each_entry_with_its_result_then_an_end() -> None:
    head, *middle, end = records(traced())
    assert isinstance(head, Head)
    assert (head.format, head.group) == (FORMAT, "drawn")
    assert isinstance(end, End)
    assert end.cause == "the program is over"
    entered = [item for item in middle if isinstance(item, (Op, Ext, Gate))]
    results = [item for item in middle if isinstance(item, Res)]
    positions = list(range(1, end.position + 1))
    assert [item.position for item in entered] == positions
    assert [item.position for item in results] == positions
    assert any(isinstance(item, Snap) for item in middle)


def test_a_trace_is_the_same_text_every_time() -> None:
    assert joined(records(traced())) == traced()
    assert traced.__wrapped__(5) == traced()


def test_a_message_that_was_written_in_another_way_is_kept_byte_for_byte() -> None:
    body = encode(Free(int64s([3]))).replace(b"\xc4\x08", b"\xc5\x00\x08")  # a longer length
    entered = entered_of(7, 0, 4, body)
    assert entered.body is not None
    assert entered.encoded() == body
    plain = entered_of(7, 0, 4, encode(Free(int64s([3]))))
    assert plain.body is None
    assert plain.encoded() == encode(Free(int64s([3])))


@pytest.mark.parametrize("kept", [1, 2, 30, 100])
def test_a_trace_cut_in_a_line_is_read_up_to_it(kept: int) -> None:
    whole = b"".join(LINES[:kept])
    cut = whole + LINES[kept][: len(LINES[kept]) // 2]
    assert joined(records(cut)) == whole
    *_, last = read_lines(io.BytesIO(cut), name="x.jsonl")
    newest = records(whole)[-1]
    assert last == Cut(position=0 if isinstance(newest, Head) else newest.position)


@pytest.mark.parametrize("kept", [1, 2, 30, len(LINES) - 1])
def test_a_trace_without_its_end_says_that_it_was_cut(kept: int) -> None:
    *_, last = read_lines(LINES[:kept], name="x.jsonl")
    assert isinstance(last, Cut)


def test_a_whole_trace_was_not_cut() -> None:
    *_, last = read_lines(LINES, name="x.jsonl")
    assert isinstance(last, End)


FOREIGN = [
    (b"", "has no whole head"),
    (LINES[0][:-1], "has no whole head"),
    (
        LINES[0].replace(FORMAT.encode(), b"kvd.trace/9"),
        "has format 'kvd.trace/9'; this build reads",
    ),
    (b"%PDF-1.7\n%\xe2\xe3\n", "is no trace; it begins with b'%PDF-1.7"),
    (b"\xff\xfe\x00\n", "is no trace"),
    (b'{"hello": 1}\n', "is no trace"),
    (LINES[1] + LINES[0], "is no trace"),
    (LINES[0] + b"{}\n", "line 2: no record of a trace"),
    (LINES[0] + b"\n", "line 2: no record of a trace"),
    (LINES[0] + LINES[0], "line 2: a trace has one head"),
    (
        LINES[0] + b'{"record":"op","i":1,"type":"idle","program":"x","index":0}\n',
        "line 2: no record",
    ),
    (LINES[0].replace(b'"shape"', b'"shapes"'), "line 1: no record of a trace"),
]


@pytest.mark.parametrize(("data", "said"), FOREIGN)
def test_what_is_no_trace_is_one_error_naming_the_file(data: bytes, said: str) -> None:
    with pytest.raises(FileError) as raised:
        list(read_lines(io.BytesIO(data), name="x.jsonl"))
    assert raised.value.message.startswith("x.jsonl")
    assert said in raised.value.message
    assert "\n" not in raised.value.message


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot be read: Is a directory"):
        list(read_trace(tmp_path))
    with pytest.raises(FileError, match=r"none\.jsonl cannot be read: No such file"):
        list(read_trace(tmp_path / "none.jsonl"))


def test_a_body_that_is_no_hexadecimal_is_named() -> None:
    entered: Entered = Op(position=3, type="idle", body="zz", program=0, index=0)
    with pytest.raises(FileError, match="body of entry 3"):
        entered.encoded()
