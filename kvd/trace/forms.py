"""Entries of the log as JSON: operations and outcomes in words and numbers, nothing packed.

Ids are lists of runs ``[first, count]``, in their order; counts are plain lists of numbers. An
operation's form says its bytes exactly: encoding it again gives the body that was logged, unless
somebody wrote the message in another way, which the record then carries (`kvd.trace.records`).
"""

from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import FieldInfo

from kvd.engine.describe import ID_FIELDS
from kvd.errors import FileError
from kvd_proto.codec import encode
from kvd_proto.operations import FACT_TYPES, OPERATION_TYPES, OWN_ENTRY_TYPES, WriteSet
from kvd_proto.outcomes import (
    NO_COLUMN,
    AdmitResult,
    Failed,
    Freed,
    Outcome,
    Pump,
    Refusal,
    ReleasedResult,
    Resolved,
    Skipped,
    TakeResult,
    Verdict,
)

Form: TypeAlias = dict[str, Any]
Plain: TypeAlias = Form | list[Any] | str | int | bool | None
"""What JSON says."""
Runs: TypeAlias = list[list[int]]
Ints: TypeAlias = npt.NDArray[np.int64]

_COUNTS: Final = "<i4"
_IDS_MAX: Final = 1 << 26
"""More than a message holds; a slip of the pen in a file is told before it fills the memory."""
_COMPLAINT_CHARACTERS_MAX: Final = 200
_NUMBER_END: Final = 1 << 63
_RUNS_WANTED: Final = "a list of runs [first, count]"
_COUNTS_WANTED: Final = "a list of whole numbers"
_BANDS_WANTED: Final = "a list with an entry for each band"
_WRITE_SETS: Final = tuple(choice.name.lower() for choice in WriteSet)
_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (*OPERATION_TYPES, *FACT_TYPES, *OWN_ENTRY_TYPES)
}
OPERATION_NAMES: Final = tuple(str(kind.__struct_config__.tag) for kind in OPERATION_TYPES)
OWN_ENTRY_NAMES: Final = tuple(str(kind.__struct_config__.tag) for kind in OWN_ENTRY_TYPES)
FACT_NAMES: Final = tuple(str(kind.__struct_config__.tag) for kind in FACT_TYPES)


def line_of(error: Exception) -> str:
    """Return what a decoder complains of as one short line: it quotes whatever it has read."""
    text = "".join(sign if sign.isprintable() else "?" for sign in str(error))
    return (
        text if len(text) <= _COMPLAINT_CHARACTERS_MAX else f"{text[:_COMPLAINT_CHARACTERS_MAX]}..."
    )


def runs_of(ids: Ints) -> Runs:
    """Return ids as runs of consecutive ones, in their order."""
    if not ids.size:
        return []
    edges = (np.diff(ids) != 1).nonzero()[0] + 1
    starts = np.concatenate(([0], edges))
    counts = np.diff(np.concatenate((starts, [ids.size])))
    runs: Runs = np.stack((ids[starts], counts), axis=1).tolist()
    return runs


def ids_of(runs: Sequence[Sequence[int]]) -> list[int]:
    """Return the ids of runs."""
    return [number for first, count in runs for number in range(first, first + count)]


# ---- operations, facts and the daemon's own entries -----------------------------------------


def type_of(message: msgspec.Struct) -> str:
    """Return the name of an operation, a fact or an entry of the daemon's own."""
    return str(message.__struct_config__.tag)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a message; asked for all the time, and slow to find out."""
    return msgspec.structs.fields(kind)


def form_of(message: msgspec.Struct) -> Form:
    """Return the fields of an operation, fact or own entry that are not at their defaults."""
    form: Form = {}
    for field in _fields(type(message)):
        value = getattr(message, field.name)
        if field.default is not msgspec.NODEFAULT and value == field.default:
            continue
        dtype = ID_FIELDS.get(field.name, _COUNTS)
        if isinstance(value, bytes):
            form[field.name] = _array_form(value, dtype)
        elif isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            form[field.name] = [
                _array_form(item, dtype) if isinstance(item, bytes) else item for item in items
            ]
        elif isinstance(value, WriteSet):
            form[field.name] = value.name.lower()
        else:
            form[field.name] = value
    return form


def message_of(kind: str, form: Form) -> msgspec.Struct:
    """Return the operation, fact or own entry that a form says; raises FileError for none."""
    found = _TYPES.get(kind)
    if found is None:
        raise FileError(
            f"{kind!r:.80} is no operation, fact or entry; there are {', '.join(_TYPES)}"
        )
    fields = {field.name: field for field in _fields(found)}
    values: dict[str, object] = {}
    for name, value in form.items():
        if name not in fields:
            there_is = f"it has {', '.join(fields)}" if fields else "it has none"
            raise FileError(f"{kind} has no field {name!r:.80}; {there_is}")
        values[name] = _value(name, value, fields[name].type)
    try:
        # Through its bytes, because that is what checks types.
        plain = found(**values)
        return msgspec.msgpack.decode(encode(plain), type=found)
    except OverflowError as error:
        raise FileError(f"{kind} has a number that does not fit into 64 bits") from error
    except (TypeError, UnicodeError, msgspec.ValidationError) as error:
        raise FileError(f"{kind} cannot be read: {line_of(error)}") from error


def encoded_form(kind: str, form: Form, body: str | None, *, name: str) -> bytes:
    """Return the bytes of an operation, fact or own entry: ``body``, or those of its form.

    Raises FileError for what is none, and by ``name`` for a body that is not hexadecimal.
    """
    if body is None:
        return encode(message_of(kind, form))
    try:
        return bytes.fromhex(body)
    except ValueError as error:
        raise FileError(f"body of {name} is not hexadecimal: {error}") from error


def _array_form(encoded: bytes, dtype: str) -> object:
    """Return a packed array: ids as runs, counts as they are, what is neither as hexadecimal."""
    if len(encoded) % np.dtype(dtype).itemsize:
        return {"hex": encoded.hex()}
    numbers: Ints = np.frombuffer(encoded, dtype=dtype).astype(np.int64)
    return numbers.tolist() if dtype == _COUNTS else runs_of(numbers)


def _value(name: str, value: object, kind: object) -> object:
    """Return a field's value from its form."""
    dtype = ID_FIELDS.get(name, _COUNTS)
    try:
        if kind is bytes:
            return _packed(value, dtype)
        if kind == tuple[bytes, ...]:
            return tuple(_packed(item, dtype) for item in _listed(value, _BANDS_WANTED))
    except FileError as error:
        raise FileError(f"field {name} is {value!r:.80}: {error.message}") from error
    if kind is WriteSet:
        if value not in _WRITE_SETS:
            wanted = " or ".join(_WRITE_SETS)
            raise FileError(f"field {name} is {value!r:.80}: it has to be {wanted}")
        return WriteSet[str(value).upper()]
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def _listed(value: object, wanted: str) -> list[object]:
    """Return a list; raises FileError saying what is wanted."""
    if not isinstance(value, list):
        raise FileError(f"it has to be {wanted}")
    return cast("list[object]", value)


def _check_numbers(numbers: list[object], wanted: str) -> None:
    """Raise FileError unless all are whole numbers of 64 bits, which is all that an array takes."""
    for number in numbers:
        if type(number) is not int:
            raise FileError(f"it has to be {wanted}")
        if not -_NUMBER_END <= number < _NUMBER_END:
            raise FileError(f"{number!r:.40} does not fit into 64 bits")


def _runs(value: object) -> Sequence[Sequence[int]]:
    """Return the runs of a form; raises FileError for what is none, or more ids than there are."""
    runs = _listed(value, _RUNS_WANTED)
    for run in runs:
        pair = _listed(run, _RUNS_WANTED)
        _check_numbers(pair, _RUNS_WANTED)
        if len(pair) != 2:
            raise FileError(f"it has to be {_RUNS_WANTED}")
    pairs = cast("list[list[int]]", runs)
    _check_numbers([first + count for first, count in pairs], _RUNS_WANTED)
    if any(count < 1 for _, count in pairs):
        raise FileError("a run has at least one id")
    if sum(count for _, count in pairs) > _IDS_MAX:
        raise FileError(f"more than {_IDS_MAX} ids")
    return pairs


def _packed(value: object, dtype: str) -> bytes:
    if isinstance(value, dict):
        try:
            return bytes.fromhex(str(cast("Form", value)["hex"]))
        except (KeyError, ValueError):
            raise FileError('bytes are {"hex": "00ff"}') from None
    if dtype == _COUNTS:
        numbers = _listed(value, _COUNTS_WANTED)
        _check_numbers(numbers, _COUNTS_WANTED)
    else:
        numbers = cast("list[object]", ids_of(_runs(value)))
    exact = np.array(numbers, dtype=np.int64)
    packed = exact.astype(dtype)
    for number in exact[packed != exact][:1]:
        raise FileError(f"{number} does not fit into {packed.dtype.itemsize * 8} bits")
    return packed.tobytes()


# ---- outcomes ---------------------------------------------------------------------------------


def outcome_form(outcome: Outcome) -> Form:
    """Return a whole outcome: result and effects name columns by their place, as on the wire."""
    form: Form = {"result": _plain(outcome.result)}
    if outcome.lengths:
        form["columns"] = [runs_of(column) for column in columns_of(outcome)]
    if outcome.segments:
        form["segments"] = [[_plain(effect) for effect in segment] for segment in outcome.segments]
    return form


def columns_of(outcome: Outcome) -> list[Ints]:
    """Return the numbers of every column."""
    if not outcome.lengths:
        return []
    numbers: Ints = np.frombuffer(outcome.columns, dtype=_COUNTS).astype(np.int64)
    columns: list[Ints] = []
    start = 0
    for length in outcome.lengths:
        columns.append(numbers[start : start + length])
        start += length
    return columns


def answer_of(outcome: Outcome) -> Form:
    """Return what an outcome means to a scheduler: no places, no effects.

    ``answer`` says which kind it is; the other fields depend on it.
    """
    result, columns = outcome.result, columns_of(outcome)

    def column(index: int) -> list[int]:
        return [] if index == NO_COLUMN else columns[index].tolist()

    def size(index: int) -> int:
        return 0 if index == NO_COLUMN else columns[index].size

    if isinstance(result, AdmitResult):
        return {
            "answer": "admitted",
            "verdicts": [Verdict(value).name.lower() for value in column(result.verdicts)],
            "new_tokens": column(result.new_tokens),
            "chunk_tokens": column(result.chunk_tokens),
            "refusals": [_refusal(refusal) for refusal in result.refusals],
            "pages": size(result.virtual),
            "retracted": size(result.retracted),
        }
    if isinstance(result, TakeResult):
        return {
            "answer": "taken",
            "pages": size(result.virtual),
            "retracted": size(result.retracted),
        }
    if isinstance(result, Refusal):
        return {"answer": "refused", **_refusal(result)}
    if isinstance(result, Freed):
        return {"answer": "freed", "units": list(result.units)}
    if isinstance(result, Resolved):
        return {"answer": "resolved", "units": [size(index) for index in result.physical]}
    if isinstance(result, Pump):
        return {"answer": "pump", "transfers": list(result.transfers)}
    if isinstance(result, ReleasedResult):
        return {"answer": "released", **form_of(result)}
    if isinstance(result, Skipped):
        return {"answer": "skipped", "request": result.request}
    if isinstance(result, Failed):
        return {"answer": "failed", "code": result.code, "message": result.message}
    return {"answer": str(result.__struct_config__.tag)}


LOGICAL_FIELDS: Final = (
    "answer",
    "verdicts",
    "new_tokens",
    "chunk_tokens",
    "pages",
    "retracted",
    "reason",
    "request",
    "units",
    "transfers",
    "copies",
    "failed_copies",
    "quarantined",
    "code",
)
"""What two allocators have to agree on; how much is short, and the words for it, are their own."""


def logical(answer: Form) -> Form:
    """Return the part of an answer that does not depend on which unit was chosen."""
    kept: Form = {name: answer[name] for name in LOGICAL_FIELDS if name in answer}
    refusals = answer.get("refusals")
    if isinstance(refusals, list):
        kept["refusals"] = [_logical_refusal(one) for one in cast("list[Plain]", refusals)]
    return kept


def _logical_refusal(refusal: Plain) -> Plain:
    """Return who was refused and why; what is no refusal, as a foreign answer may be, is kept."""
    if not isinstance(refusal, dict):
        return refusal
    return {name: refusal.get(name) for name in ("request", "reason")}


def _refusal(refusal: Refusal) -> Form:
    return {
        "reason": refusal.reason.value,
        "request": refusal.request,
        "band": refusal.band,
        "short_units": refusal.short_units,
        "short_bytes": refusal.short_bytes,
        "waiting_helps": refusal.waiting_helps,
        "obstacle": refusal.obstacle,
        "remover": refusal.remover,
    }


def _plain(message: msgspec.Struct) -> Form:
    """Return a result or an effect with its name, columns as numbers."""
    form: Form = {"type": type_of(message)}
    for field in _fields(type(message)):
        value = getattr(message, field.name)
        if isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            value = [_plain(it) if isinstance(it, msgspec.Struct) else it for it in items]
        elif isinstance(value, Enum):
            value = value.value
        form[field.name] = value
    return form
