"""Trace files: both formats, what is refused, and what is selected."""

from pathlib import Path

import pytest

from kvd.errors import FileError
from kvd.testing.traces import (
    EXCERPT_NAMES,
    TraceRequest,
    excerpt,
    read_trace,
    select_requests,
)

MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3, "input_length": 12, "output_length": 1, "hash_ids": []}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109"
)


def write(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode())
    return path


def test_json_lines_are_read_in_order(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))

    assert trace.requests == (TraceRequest(1, 6758, 500), TraceRequest(2, 12, 1))


def test_csv_is_read_in_order_whatever_its_line_ends(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, AZURE))

    assert trace.requests == (TraceRequest(2, 374, 44), TraceRequest(3, 396, 109))


def test_empty_lines_and_a_byte_order_mark_are_no_requests(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "\ufeff\n" + MOONCAKE + "\n\n"))

    assert [request.line_index for request in trace.requests] == [2, 3]


@pytest.mark.parametrize("name", EXCERPT_NAMES)
def test_every_shipped_excerpt_has_200_requests_of_4096_tokens(name: str) -> None:
    selection = select_requests(excerpt(name), request_count=200, tokens_max=4096)

    assert len(selection.requests) == 200
    assert max(request.total_tokens for request in selection.requests) <= 4096


def test_every_shipped_excerpt_is_small_and_attributed() -> None:
    folder = Path(excerpt.__code__.co_filename).parent / "excerpts"
    attribution = (folder / "ATTRIBUTION.md").read_text()

    assert {path.name for path in folder.iterdir()} == {*EXCERPT_NAMES, "ATTRIBUTION.md"}
    assert all((folder / name).stat().st_size < 200_000 for name in EXCERPT_NAMES)
    assert all(f"`{name}`" in attribution for name in EXCERPT_NAMES)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "line 1: ''"),
        ("a,b\n1,2\n", "line 1: 'a,b'"),
        ("{]\n", "line 1: '{]'"),
        (MOONCAKE + '{"timestamp": 1}\n', "line 3: '{\"timestamp\": 1}'"),
        (MOONCAKE.replace("6758", '"6758"'), "line 1: .*input_length"),
        (MOONCAKE.replace("6758", "0"), "line 1: input_length is 0"),
        (MOONCAKE.replace("6758", "-5"), "line 1: input_length is -5"),
        (MOONCAKE.replace("6758", str(1 << 40)), f"line 1: input_length is {1 << 40}"),
        (MOONCAKE + "oops\n", "line 3: 'oops'"),
        (AZURE + "\r\n1,2\r\n", "line 4: '1,2' has 2 columns"),
        (AZURE.replace("396", "many"), "line 3: ContextTokens is 'many'"),
        (AZURE.replace("396", "3_9"), "line 3: ContextTokens is '3_9'"),
        (AZURE.replace("109", "0"), "line 3: GeneratedTokens is 0"),
        (AZURE.replace("109", "9" * 5000), "line 3: GeneratedTokens is '9999"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
    ],
)
def test_a_malformed_file_is_refused_with_line_and_value(
    tmp_path: Path, text: str, named: str
) -> None:
    path = write(tmp_path, text)

    with pytest.raises(FileError, match=f"trace {path}.*{named}") as caught:
        read_trace(path)

    assert len(caught.value.message) < 400


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_an_unreadable_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "trace"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(FileError, match=f"trace {path} cannot be read"):
        read_trace(path)


def test_a_selection_takes_the_first_that_are_short_enough(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))

    selection = select_requests(trace, request_count=1, tokens_max=13)

    assert selection.requests == (TraceRequest(2, 12, 1),)
    assert "first 1 requests of at most 13 tokens" in selection.rule


def test_a_selection_without_limits_takes_all(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))

    assert select_requests(trace, request_count=None, tokens_max=None).requests == trace.requests


@pytest.mark.parametrize(("count", "tokens_max"), [(3, None), (1, 12), (None, 12)])
def test_a_selection_that_finds_too_few_requests_is_refused(
    tmp_path: Path, count: int | None, tokens_max: int | None
) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))

    with pytest.raises(FileError, match=r"has [02] requests"):
        select_requests(trace, request_count=count, tokens_max=tokens_max)
