"""A rank as a process of its own: ``python -m tests.e2e.rank_program PARENT SPEC``.

It says on stdout what happens, one line of JSON each, and obeys single words on stdin.
"""

import json
import os
import select
import sys
from typing import Any

from kvd.testing.child import die_with_parent
from kvd_client import Client, Mode, attach
from kvd_client.errors import EndedError, KvdClientError
from tests.e2e.ranks import DEADLINE_MS, LAYERS, SIZING
from tests.e2e.schedule import passes_of, run_pass

PASSES = passes_of(3, 10_000)
PASS_S = 0.005
"""What a forward takes once it is known that things run: other tests need the cores, too."""


def main() -> None:
    """Attach, run until the incarnation ends, and then keep the mapping until told to close."""
    die_with_parent(int(sys.argv[1]))
    spec: dict[str, Any] = json.loads(sys.argv[2])
    forks = spec.pop("forks", False)
    try:
        client = attach(
            spec.pop("address"),
            declare=LAYERS,
            sizing=SIZING,
            deadline_ms=DEADLINE_MS,
            mode=Mode(spec.pop("mode", "mirrored")),
            **spec,
        )
    except KvdClientError as error:
        say("refused", error)
        return
    told = {"incarnation": client.incarnation, "token": client.welcome.token}
    print(json.dumps({"event": "attached"} | told), flush=True)
    if forks:
        fork_a_child()
    try:
        work(client)
    except EndedError as error:
        say("ended", error)
    sys.stdin.readline()
    client.close()
    print(json.dumps({"event": "closed"}), flush=True)
    sys.stdin.readline()


def work(client: Client, *, tells: bool = True) -> None:
    """Schedule and launch as long as it goes."""
    for number, one in enumerate(PASSES, start=1):
        run_pass(client, one, step=number - 1)
        with client.launch() as step:
            step.submit(lambda: None)
        if number == 5 and tells:
            print(json.dumps({"event": "running"}), flush=True)
        if number >= 5:
            select.select([], [], [], PASS_S)


def fork_a_child() -> None:
    """Leave a child behind that inherits every descriptor and ends with its stdin."""
    if os.fork() == 0:
        print(json.dumps({"event": "forked", "pid": os.getpid()}), flush=True)
        os.read(0, 1)
        os._exit(0)


def say(event: str, error: KvdClientError) -> None:
    """Report an error as the engine's log would show it."""
    shown = {"event": event, "code": error.code.value, "message": error.message}
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
