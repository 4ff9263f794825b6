"""Statistics and health on a socket and a thread of their own.

The thread reads only what the hot thread published last, so it answers while the hot path is stuck,
and says so: health compares the age of the daemon's last sign of life with what is normal.
"""

import threading
from time import monotonic
from typing import Any

import msgspec
import zmq

from kvd.errors import ServeError
from kvd_proto.codec import decode_header, encode
from kvd_proto.control import ErrorReply, Header, MessageKind
from kvd_proto.errors import ErrorCode, KvdError

HEALTH_SCHEMA = "kvd.health/1"
POLL_MS = 200
STUCK_AFTER_S = 2.0
"""The loop gives a sign of life ten times a second; twenty missed ones are no jitter."""


class Published:
    """The newest document and sign of life; the hot thread replaces them, others only read."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.alive_at = monotonic()

    def health(self) -> dict[str, Any]:
        """Return whether the daemon's loop is alive, and which groups are not what they should."""
        age_s = monotonic() - self.alive_at
        groups = self.document.get("groups", [])
        problems = [
            f"group {group['name']} waits for {', '.join(group['waiting_for'])}"
            for group in groups
            if group["waiting_for"]
        ]
        problems += [
            f"memory of group {group['name']} is still in use by {', '.join(group['leaving'])}"
            for group in groups
            if group["leaving"]
        ]
        problems += [
            f"{item['arena_bytes']} bytes of group {group['name']} are in quarantine for "
            f"{item['age_s']:.0f} s, {item['who']}: {item['reason']}"
            for group in groups
            for item in group["quarantined"]
        ]
        for group in groups:
            for stage in group["stages"]:
                behind = stage["position"] - min(stage["applied"].values(), default=0)
                if behind > stage["log"]["entries"] // 2 > 1024:
                    problems.append(f"a rank of group {group['name']} is {behind} entries behind")
        if age_s > STUCK_AFTER_S:
            problems.insert(0, f"the daemon's loop gave no sign of life for {age_s:.1f} s")
        return {
            "schema": HEALTH_SCHEMA,
            "ok": age_s <= STUCK_AFTER_S,
            "loop_age_s": age_s,
            "problems": problems,
        }


class Observatory:
    """The read-only socket, served by a thread."""

    def __init__(self, address: str, published: Published) -> None:
        self._published = published
        self._stop = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, 1 << 16)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy()
            raise ServeError(f"cannot bind {address}: {error}") from error
        self._thread = threading.Thread(target=self._run, name="kvd-observatory", daemon=True)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close the socket."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        self._socket.close()
        self._context.term()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._socket.poll(POLL_MS):
                continue
            identity, *frames = self._socket.recv_multipart()
            header, body = self._answer(frames)
            self._socket.send_multipart([identity, encode(header), body])

    def _answer(self, frames: list[bytes]) -> tuple[Header, bytes]:
        try:
            if len(frames) != 2:
                raise ServeError(
                    f"message of {len(frames)} frames; header and body are expected",
                    code=ErrorCode.BAD_FRAME,
                )
            kind = decode_header(frames[0]).kind
            if kind is MessageKind.STATS:
                return Header(kind), msgspec.json.encode(self._published.document)
            if kind is MessageKind.HEALTH:
                return Header(kind), msgspec.json.encode(self._published.health())
            raise ServeError(
                f"message kind {kind.value} is not for the read-only socket",
                code=ErrorCode.FORBIDDEN,
            )
        except KvdError as error:
            reply = ErrorReply(code=error.code.value, message=error.message, retry=error.retry)
            return Header(MessageKind.ERROR), encode(reply)
