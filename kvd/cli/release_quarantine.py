"""``kvd release-quarantine``: an administrator states that nobody touches a dead rank's memory."""

from pathlib import Path
from typing import Final

import click

from kvd.cli.flags import load_from_flags, setting_options
from kvd.errors import ServeError
from kvd_client.device import descriptors
from kvd_proto.codec import decode_control, encode
from kvd_proto.control import Ack, Control, ErrorReply, FreeQuarantined, Ticket
from kvd_proto.errors import ErrorCode

ANSWER_WAIT_MS: Final = 5_000


@click.command()
@click.argument("rank", metavar="GROUP/[STAGE/]RANK")
@click.option(
    "--i-have-proof",
    "evidence",
    required=True,
    metavar="TEXT",
    help="What proves that nobody can touch the memory any more; it goes to the daemon's log.",
)
@setting_options("serve", only=("runtime_dir", "socket_path", "descriptor_path"))
def release_quarantine(
    config_file: Path | None, rank: str, evidence: str, **flags: str | None
) -> None:
    """Give the memory of a rank that ended back, on your word instead of the daemon's.

    If a process or a kernel of that rank is still at work, it will write over the next
    incarnation's memory. End its processes instead, if that is possible: then the memory comes
    back by itself. `kvd stats` shows what is in quarantine, and why.
    """
    request = _read_rank(rank, evidence)
    _ask(load_from_flags(config_file, flags).serve.descriptor_path, request)
    click.echo(f"stage {request.stage} rank {request.rank} of group {request.group} is given back")


def _read_rank(text: str, evidence: str) -> FreeQuarantined:
    parts = text.split("/")
    numbers = ["0", *parts[1:]][-2:]
    if len(parts) not in (2, 3) or not all(part.isdecimal() for part in numbers):
        raise ServeError(
            f"{text!r} names no rank: write GROUP/RANK, or GROUP/STAGE/RANK with pipeline stages",
            code=ErrorCode.BAD_ARGUMENT,
        )
    return FreeQuarantined(
        group=parts[0], stage=int(numbers[0]), rank=int(numbers[1]), evidence=evidence
    )


def _ask(path: Path, request: FreeQuarantined) -> None:
    """Send the request over a connection of its own; raises ServeError if it is not done."""
    try:
        with descriptors.connect(str(path), timeout_ms=ANSWER_WAIT_MS) as sock:
            _expect(descriptors.receive_message(sock, 0)[0], Ticket)
            descriptors.send_message(sock, encode(request))
            _expect(descriptors.receive_message(sock, 0)[0], Ack)
    except OSError as error:
        raise ServeError(
            f"no daemon answers at {path} ({error}); start one with kvd serve, or name its "
            f"--descriptor-socket",
            code=ErrorCode.UNREACHABLE,
            retry=True,
        ) from error


def _expect(payload: bytes, kind: type[Control]) -> None:
    answer = decode_control(payload)
    if isinstance(answer, ErrorReply):
        raise ServeError(answer.message)
    if not isinstance(answer, kind):
        raise ServeError(f"the daemon said {type(answer).__name__} where {kind.__name__} is due")
