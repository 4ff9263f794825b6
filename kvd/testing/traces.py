"""Request traces: how long real prompts and answers were, and in which order they came.

Two public formats are read: Mooncake's JSON lines (`timestamp`, `input_length`, `output_length`)
and the CSV of Azure's LLM inference dataset (`TIMESTAMP,ContextTokens,GeneratedTokens`). The first
line tells which. Only lengths and order are used: a replay runs as fast as it can.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final, Protocol

import msgspec

from kvd.errors import FileError

TOKENS_MAX: Final = 1 << 30
"""Longest prompt or answer believed; anything above is a damaged line."""
DIGITS_MAX: Final = 18
"""Digits of a number that still fits 64 bits."""
SHOWN_CHARACTERS_MAX: Final = 60
"""How much of a wrong value an error shows."""
AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EXCERPT_NAMES: Final = (
    "mooncake_conversation.jsonl",
    "azure_2023_conv.csv",
    "azure_2023_code.csv",
)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; ``line_index`` is its place in the file, the first line is 1."""

    line_index: int
    prompt_tokens: int
    output_tokens: int

    @property
    def total_tokens(self) -> int:
        """Return prompt and answer together."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Trace:
    """All requests of one file, in arrival order."""

    name: str
    requests: tuple[TraceRequest, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The requests that a replay serves, and the rule that chose them."""

    trace: Trace
    rule: str
    requests: tuple[TraceRequest, ...]


class TextSource(Protocol):
    """What a trace is read from: a path, or a file inside the package."""

    @property
    def name(self) -> str:
        """Return the file's name without folders."""
        ...

    def read_bytes(self) -> bytes:
        """Return the whole content."""
        ...


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: float
    input_tokens: int = msgspec.field(name="input_length")
    output_tokens: int = msgspec.field(name="output_length")


_mooncake_decoder = msgspec.json.Decoder(_MooncakeLine)


def excerpt(name: str = EXCERPT_NAMES[0]) -> Trace:
    """Return one of the excerpts that are shipped with kvd."""
    assert name in EXCERPT_NAMES
    return _read(files("kvd.testing").joinpath("excerpts", name), shown=name)


def read_trace(path: Path) -> Trace:
    """Return the trace in a file of either format.

    Raises FileError for a file that is missing or neither format, and for a malformed line.
    """
    return _read(path, shown=str(path))


def select_requests(
    trace: Trace, *, request_count: int | None, tokens_max: int | None
) -> Selection:
    """Return the first requests that are short enough; None is no limit.

    Raises FileError if the trace has fewer such requests than asked.
    """
    fitting = tuple(
        request
        for request in trace.requests
        if tokens_max is None or request.total_tokens <= tokens_max
    )
    short = "" if tokens_max is None else f" of at most {tokens_max} tokens (prompt and answer)"
    if request_count is None:
        rule = f"all {len(fitting)} requests{short} of {trace.name}"
        chosen = fitting
    else:
        rule = f"the first {request_count} requests{short} of {trace.name}"
        chosen = fitting[:request_count]
    if not chosen or (request_count is not None and len(chosen) < request_count):
        raise FileError(
            f"{trace.name} has {len(fitting)} requests{short}, not the "
            f"{request_count if request_count is not None else 'one or more'} asked"
        )
    return Selection(trace=trace, rule=rule + ", in arrival order", requests=chosen)


def _read(source: TextSource, *, shown: str) -> Trace:
    try:
        text = source.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"trace {shown} cannot be read: {error}") from error
    lines = text.splitlines()
    head_index, head = next(
        ((index, line.strip()) for index, line in enumerate(lines, 1) if line.strip()), (1, "")
    )
    if head.startswith("{"):
        read_line = _mooncake_request
        first_index = head_index
    elif head == ",".join(AZURE_COLUMNS):
        read_line = _azure_request
        first_index = head_index + 1
    else:
        raise FileError(
            f"trace {shown}, line {head_index}: {_shown(head)} starts neither Mooncake's JSON "
            f"lines (an object with input_length and output_length) nor Azure's CSV "
            f"(the heading {','.join(AZURE_COLUMNS)})"
        )
    requests: list[TraceRequest] = []
    for index, line in enumerate(lines[first_index - 1 :], first_index):
        if line.strip():
            prompt_tokens, output_tokens = read_line(line, f"trace {shown}, line {index}")
            requests.append(TraceRequest(index, prompt_tokens, output_tokens))
    if not requests:
        raise FileError(f"trace {shown} has no requests")
    return Trace(name=source.name, requests=tuple(requests))


def _mooncake_request(line: str, where: str) -> tuple[int, int]:
    try:
        found = _mooncake_decoder.decode(line)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise FileError(f"{where}: {_shown(line)} is no Mooncake request: {error}") from error
    return (
        _checked(found.input_tokens, "input_length", where),
        _checked(found.output_tokens, "output_length", where),
    )


def _azure_request(line: str, where: str) -> tuple[int, int]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(AZURE_COLUMNS):
        raise FileError(
            f"{where}: {_shown(line)} has {len(cells)} columns, "
            f"not the {len(AZURE_COLUMNS)} of {','.join(AZURE_COLUMNS)}"
        )
    numbers: list[int] = []
    for name, cell in zip(AZURE_COLUMNS[1:], cells[1:], strict=True):
        # int() would also take "1_000" and digits of other scripts, and choke on thousands of them.
        if not (cell.isascii() and cell.isdigit() and len(cell) <= DIGITS_MAX):
            raise FileError(f"{where}: {name} is {_shown(cell)}, not a whole number")
        numbers.append(_checked(int(cell), name, where))
    return numbers[0], numbers[1]


def _checked(tokens: int, name: str, where: str) -> int:
    if not 1 <= tokens <= TOKENS_MAX:
        raise FileError(f"{where}: {name} is {tokens}, allowed is 1 to {TOKENS_MAX}")
    return tokens


def _shown(text: str) -> str:
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = text[:SHOWN_CHARACTERS_MAX] + "..."
    return repr(text)
