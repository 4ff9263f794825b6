"""The records of a trace: JSON lines, one file per stage and incarnation (semantics 11.5).

===== =============================================================================================
head  format, build, and everything that the first decision depends on (`IncarnationStart`)
op    an operation that a program sent: position ``i``, program, index, type and arguments
ext   a fact that a rank stated: the only input that is not the program's, with its position
gate  an entry of the daemon's own: what was released, the end of the incarnation
res   what entry ``i`` decided: the answer, the whole outcome where there is more, and a digest
snap  where the stage stands behind entry ``i``: counts per band and a digest of its state
end   the incarnation ended, or the recording was stopped on purpose
gap   the recording is incomplete from here on, and why
===== =============================================================================================

Every ``op``, ``ext`` and ``gate`` is followed by its ``res``. ``body`` stands where encoding type
and arguments again does not give the bytes that were logged. The digest of a ``res`` is that of the
whole entry, so equal digests mean the same decision bit for bit. A file that ends without ``end``
or ``gap`` was cut; whoever reads it is told so by one more record, `Cut`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from kvd.engine.log import LogRecord
from kvd.engine.snap import StageSnap
from kvd.engine.start import IncarnationStart
from kvd.errors import FileError
from kvd.trace.forms import (
    FACT_NAMES,
    OPERATION_NAMES,
    OWN_ENTRY_NAMES,
    Form,
    answer_of,
    encoded_form,
    form_of,
    line_of,
    message_of,
    outcome_form,
    type_of,
)
from kvd.trace.head import validate_start
from kvd_proto.codec import (
    decode_entry,
    decode_fact,
    decode_operation,
    decode_own_entry,
    digest_of,
    encode,
)
from kvd_proto.outcomes import FACT_PROGRAM, OWN_PROGRAM

FORMAT: Final = "kvd.trace/1"


class _Beginning(msgspec.Struct, frozen=True):
    """What any version of a trace says first."""

    record: str
    format: str


class Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="record",
    omit_defaults=True,
    gc=False,
    rename={"position": "i"},
):
    """Base of all records."""


class Head(Record, frozen=True, kw_only=True, tag="head"):
    """First record of every trace."""

    format: str
    build: str
    group: str = ""
    start: IncarnationStart


class Entered(Record, frozen=True, kw_only=True):
    """Base of what enters the log at a position."""

    position: int
    type: str
    args: Form = {}
    body: str | None = None
    """Hexadecimal; None where type and arguments say it."""

    def encoded(self) -> bytes:
        """Return the bytes that were logged; raises FileError for what is none."""
        return encoded_form(self.type, self.args, self.body, name=f"entry {self.position}")


class Op(Entered, frozen=True, kw_only=True, tag="op"):
    """An operation."""

    program: Annotated[int, msgspec.Meta(ge=0)]
    index: Annotated[int, msgspec.Meta(ge=0)]


class Ext(Entered, frozen=True, kw_only=True, tag="ext"):
    """A fact."""

    rank: int


class Gate(Entered, frozen=True, kw_only=True, tag="gate"):
    """An entry of the daemon's own."""


class Res(Record, frozen=True, kw_only=True, tag="res"):
    """What the entry before it decided."""

    position: int
    answer: Form
    outcome: Form | None = None
    """None for one without columns and effects whose result the answer tells."""
    digest: str


class Snap(Record, frozen=True, kw_only=True, tag="snap"):
    """Where the stage stands behind entry ``i``, the last of a batch."""

    position: int
    snap: StageSnap


class End(Record, frozen=True, kw_only=True, tag="end"):
    """Nothing follows, and nothing is missing."""

    position: int
    cause: str


class Gap(Record, frozen=True, kw_only=True, tag="gap"):
    """Nothing follows, though the log went on."""

    position: int
    reason: str


class Cut(Record, frozen=True, kw_only=True, tag="cut"):
    """The file ends before the trace does: whoever wrote it ended, or still writes.

    It stands in no file: `read_lines` says it behind the last whole record.
    """

    position: int
    """Of the newest whole record."""


Written: TypeAlias = Head | Op | Ext | Gate | Res | Snap | End | Gap
AnyRecord: TypeAlias = Written | Cut
AnyEntered: TypeAlias = Op | Ext | Gate
Source: TypeAlias = Literal["op", "ext", "gate"]

ENTERED_NAMES: Final[dict[type[Entered], tuple[str, ...]]] = {
    Op: OPERATION_NAMES,
    Ext: FACT_NAMES,
    Gate: OWN_ENTRY_NAMES,
}
"""What each record may be of."""

_decoder = msgspec.json.Decoder(Written)
_encoder = msgspec.json.Encoder()


def entry_digest(entry: bytes) -> str:
    """Return the digest of an encoded entry as a trace shows it: 16 hexadecimal digits."""
    return f"{digest_of(entry):016x}"


def records_of(position: int, logged: LogRecord) -> tuple[AnyEntered, Res]:
    """Return the two records of an entry of the log."""
    outcome = decode_entry(logged.entry).outcome
    has_more = bool(outcome.lengths or outcome.segments)
    return entered_of(position, logged.program, logged.index, logged.body), Res(
        position=position,
        answer=answer_of(outcome),
        outcome=outcome_form(outcome) if has_more else None,
        digest=entry_digest(logged.entry),
    )


def entered_of(position: int, program: int, index: int, body: bytes) -> AnyEntered:
    """Return the record of what entered the log, by the program that stands in its entry."""
    if program == FACT_PROGRAM:
        message: msgspec.Struct = decode_fact(body)
    elif program == OWN_PROGRAM:
        message = decode_own_entry(body)
    else:
        message = decode_operation(body)
    kind, args = type_of(message), form_of(message)
    exact = None if encode(message_of(kind, args)) == body else body.hex()
    if program == FACT_PROGRAM:
        return Ext(position=position, type=kind, args=args, body=exact, rank=index)
    if program == OWN_PROGRAM:
        return Gate(position=position, type=kind, args=args, body=exact)
    return Op(position=position, type=kind, args=args, body=exact, program=program, index=index)


def source_of(entered: AnyEntered) -> Source:
    """Return who put something into the log: a program, a rank or the daemon."""
    if isinstance(entered, Op):
        return "op"
    return "ext" if isinstance(entered, Ext) else "gate"


def encode_record(record: Record) -> bytes:
    """Return a record as one line."""
    return _encoder.encode(record) + b"\n"


def decode_record(line: bytes) -> Written:
    """Return the record of one line; raises FileError."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise FileError(f"no record of a trace: {line_of(error)}") from error


def read_lines(lines: Iterable[bytes], *, name: str) -> Iterator[AnyRecord]:
    """Yield the records of lines, and `Cut` last if they end without an end.

    A last line that is not whole was being written and is left out. Raises FileError naming the
    line that is no record or says what no daemon would have written, or a head of another format.
    """
    head: Head | None = None
    newest: Written | None = None
    for number, line in enumerate(lines, 1):
        if head is None:
            _check_beginning(line, name)
        if not line.endswith(b"\n"):
            break
        try:
            record = decode_record(line)
            if isinstance(newest, (End, Gap)):
                raise FileError("nothing stands behind the end of a trace")
            if (head is None) != isinstance(record, Head):
                raise FileError("a trace has one head, as its first record")
            if isinstance(record, Head):
                validate_start(record.start)
                head = record
            elif isinstance(record, Entered):
                assert head is not None
                _validate_entered(record, head.start.ranks)
        except FileError as error:
            raise FileError(f"{name}, line {number}: {error.message}") from error
        newest = record
        yield record
    if head is None:
        raise FileError(f"{name} has no whole head, with which a trace begins; it is empty or cut")
    if not isinstance(newest, (End, Gap)):
        start = head.start.position
        yield Cut(position=start if newest is None or isinstance(newest, Head) else newest.position)


def read_trace(path: Path) -> Iterator[AnyRecord]:
    """Yield the records of a file; raises FileError for one that cannot be read."""
    try:
        with path.open("rb") as stream:
            yield from read_lines(stream, name=str(path))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error


def _validate_entered(entered: AnyEntered, ranks: tuple[int, ...]) -> None:
    """Raise FileError for what cannot have entered a log."""
    allowed = ENTERED_NAMES[type(entered)]
    if entered.type not in allowed:
        raise FileError(
            f"{entered.type!r:.80} is no type of {source_of(entered)}; there are "
            f"{', '.join(allowed)}"
        )
    if isinstance(entered, Ext) and entered.rank not in ranks:
        raise FileError(
            f"rank is {entered.rank}; the trace is of ranks {', '.join(map(str, ranks))}"
        )
    if entered.body is not None:
        message_of(entered.type, entered.args)
    entered.encoded()


def _check_beginning(line: bytes, name: str) -> None:
    """Raise FileError for what is no trace, or one of another version."""
    if not line.endswith(b"\n"):
        return
    try:
        found = msgspec.json.decode(line, type=_Beginning)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{name} is no trace; it begins with {line[:40]!r}") from error
    if found.format != FORMAT:
        raise FileError(f"{name} has format {found.format!r:.80}; this build reads {FORMAT}")
