"""``kvd what-if`` beside a running daemon: it answers what the daemon would."""

import json
from typing import Any

import pytest

from kvd_client import Client
from kvd_proto.control import WhatIfReply
from tests.e2e.daemon_process import DaemonProcess, run_kvd
from tests.e2e.ranks import Ranks, admit

QUESTIONS = ({"prompt": 20, "new": 10}, {"prompt": 60, "new": 4}, {"prompt": 60, "new": 40})


def ask_outside(daemon: DaemonProcess, group: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command on statistics that were published after this call."""
    daemon.fresh_stats()
    done = run_kvd(
        *("what-if", "--json", "--runtime-dir", str(daemon.folder), "--group", group), *arguments
    )
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    (found,) = document["stages"]
    return done.returncode, found


def check_same(found: dict[str, Any], reply: WhatIfReply) -> None:
    assert list(found["demand_units"].values()) == list(reply.demand_units)
    assert found["new_tokens"] == reply.new_tokens
    assert found["fits_empty"] == reply.fits_empty
    assert (found["obstacle"] or "") == reply.obstacle
    for step, inside in zip(found["steps"], reply.steps, strict=True):
        assert (step["name"], step["fits"], step["layout"] or "", step["moved_bytes"]) == (
            inside.name,
            inside.fits,
            inside.layout,
            inside.moved_bytes,
        )


def busy(ranks: Ranks) -> Client:
    client = ranks.attach()
    admit(client, [1, 2, 3], tokens=16)
    with client.batch() as batch:
        batch.free([2])
    return client


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_the_command_answers_as_the_daemon_does(
    daemon: DaemonProcess, ranks: Ranks, question: dict[str, int]
) -> None:
    client = busy(ranks)
    inside = client.what_if(prompt_tokens=question["prompt"], new_tokens_max=question["new"])

    code, found = ask_outside(
        daemon,
        ranks.group,
        *("--prompt", str(question["prompt"]), "--new", str(question["new"])),
    )

    check_same(found, inside)
    assert code == (0 if any(step.fits for step in inside.steps) else 1)
    assert found["position"] == client.applied


def test_units_beyond_the_arena_do_not_fit(daemon: DaemonProcess, ranks: Ranks) -> None:
    client = busy(ranks)
    units = [band.unit_index_end_count for band in client.plan.bands]

    code, found = ask_outside(
        daemon, ranks.group, "--units", ",".join(str(count) for count in units)
    )

    check_same(found, client.what_if(units))
    assert code == 1
    assert found["obstacle"]
