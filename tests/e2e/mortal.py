"""Ranks that kill themselves at a given point: ``python -m tests.e2e.mortal PARENT``.

One process that has imported everything forks a rank per line of stdin, a specification in JSON,
and tells on stdout how each ended. A rank starts in a few milliseconds that way.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

import zmq

from kvd.testing.child import die_with_parent
from kvd_client import attach
from kvd_client.device.apply import Applier
from kvd_client.device.host import commands as host_commands
from kvd_client.errors import EndedError
from kvd_client.launch import Step
from kvd_client.transport import Frames, ZmqTransport
from tests.e2e.rank_program import work
from tests.e2e.ranks import DEADLINE_MS, LAYERS, SIZING

POINTS: Final[dict[str, tuple[object, str, bool]]] = {
    "launched": (Step, "begin", True),
    "before_record": (Step, "end", False),
    "recorded": (Step, "end", True),
    "before_send": (ZmqTransport, "send", False),
    "sent": (ZmqTransport, "send", True),
    "replied": (ZmqTransport, "receive", True),
    "before_apply": (Applier, "enqueue_reply", False),
    "applied": (Applier, "enqueue_reply", True),
    "device_action": (host_commands, "_write_words", False),
}
"""Where a rank may die: in which method of what, and whether behind it."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arrange_death(point: str, count: int) -> None:
    """Have this process die at the ``count``-th time that it comes to a point."""
    if point == "half_sent":
        setattr(ZmqTransport, "send", _send_a_half(count))  # noqa: B010
        return
    owner, name, behind = POINTS[point]
    real: Callable[..., Any] = getattr(owner, name)
    seen = [0]

    def mortal(*arguments: Any, **named: Any) -> Any:
        seen[0] += 1
        if seen[0] == count and not behind:
            die()
        result = real(*arguments, **named)
        if seen[0] == count:
            die()
        return result

    setattr(owner, name, mortal)


def _send_a_half(count: int) -> Callable[[ZmqTransport, Frames], None]:
    real = ZmqTransport.send
    seen = [0]

    def send(transport: ZmqTransport, frames: Frames) -> None:
        seen[0] += 1
        if seen[0] < count:
            real(transport, frames)
            return
        dealer: zmq.Socket[bytes] = getattr(transport, "_dealer")  # noqa: B009
        dealer.send(frames.header, zmq.SNDMORE)
        die()

    return send


def run(spec: dict[str, Any]) -> None:
    """Attach as a rank and work until the end that was arranged."""
    point, count = spec.pop("point"), spec.pop("count")
    client = attach(
        spec.pop("address"), declare=LAYERS, sizing=SIZING, deadline_ms=DEADLINE_MS, **spec
    )
    arrange_death(point, count)
    try:
        work(client, tells=False)
    except EndedError:
        os._exit(1)


def main() -> None:
    """Fork a rank per line until stdin ends."""
    die_with_parent(int(sys.argv[1]))
    own = os.getpid()
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            die_with_parent(own)
            try:
                run(json.loads(line))
            finally:
                os._exit(2)
        print(json.dumps({"event": "started", "pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"event": "died", "code": code}), flush=True)


if __name__ == "__main__":
    main()
