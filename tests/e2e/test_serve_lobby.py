"""How ranks meet: hellos that contradict themselves or each other, deadlines, budgets."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvd_client import Client, Mode, Role
from kvd_client.errors import AttachError, UnreachableError, UsageError
from kvd_proto.errors import ErrorCode
from kvd_proto.memory import AttentionPart, DeclaredConfig, DeclaredLayers, LayerDecl, SizingInputs
from tests.e2e.daemon_process import DaemonProcess, wait_until
from tests.e2e.ranks import BUDGET_BYTES, CONTEXT_TOKENS, LAYERS, SIZING, Ranks, admit
from tests.e2e.wire import peers


def sizing(**changes: Any) -> SizingInputs:
    return msgspec.structs.replace(SIZING, **changes)


def other_model() -> DeclaredLayers:
    return msgspec.structs.replace(LAYERS, layers=LAYERS.layers[:2])


def two_stages() -> DeclaredLayers:
    """Return a model whose halves both have a layer with full attention."""
    return msgspec.structs.replace(LAYERS, layers=LAYERS.layers * 2)


def wide_model() -> DeclaredLayers:
    """Return a model with so many bytes per token that terabytes can be numbered."""
    part = AttentionPart(kv_head_count=64, key_element_count=8, value_element_count=4)
    return DeclaredLayers(layers=(LayerDecl(parts=(part,)),), context_tokens=CONTEXT_TOKENS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rank": 1}, "rank 1 is outside [0, 1)"),
        ({"rank": -1}, "rank -1 is outside [0, 1)"),
        ({"rank": 2, "tp": 2}, "rank 2 is outside [0, 2)"),
        ({"stage": 1}, "stage 1 is outside [0, 1)"),
        ({"stage": -1}, "stage -1 is outside [0, 1)"),
        ({"tp": 0}, "tp 0 is outside [1, 1024]"),
        ({"tp": -1}, "tp -1 is outside [1, 1024]"),
        ({"tp": 1 << 40}, f"tp {1 << 40} is outside [1, 1024]"),
        ({"pp": 0}, "pp 0 is outside [1, 1024]"),
        ({"program": -1}, "program -1 is outside [0, 1024)"),
        ({"program": 1024}, "program 1024 is outside [0, 1024)"),
        ({"group": ""}, "group '' is no name"),
        ({"group": "a/b"}, "group 'a/b' is no name"),
        ({"group": "a\n"}, "group 'a\\n' is no name"),
        ({"group": "x" * 65}, "is no name: use 1 to 64 letters"),
        ({"declare": None}, "declare is missing"),
        ({"gpu_uuid": "GPU-1"}, "gpu_uuid 'GPU-1' asks for a CUDA device"),
        ({"role": Role.OBSERVER}, "role observer reads statistics"),
        ({"role": Role.ADMIN}, "role admin"),
        ({"role": Role.WORKER}, "role worker sends no operations, mode mirrored does"),
        ({"role": Role.WORKER, "mode": Mode.LEADER}, "mode leader does"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_hello_that_contradicts_itself_is_refused_with_the_value(
    daemon: DaemonProcess, group: str, changes: dict[str, Any], problem: str
) -> None:
    with peers(daemon.address) as (peer,):
        peer.say_hello(**({"group": group} | changes))

        error = peer.error()
        assert error.code == "BAD_HELLO"
        assert problem in error.message


@pytest.mark.case("40")
@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ({"tp": 2}, {"tp": 3}, "tp is 3, the other ranks said 2"),
        ({"tp": 2}, {"tp": 2, "pp": 2}, "pp is 2, the other ranks said 1"),
        (
            {"tp": 2},
            {"tp": 2, "sizing": sizing(page_tokens=8)},
            "sizing.page_tokens is 8, the other ranks said 4",
        ),
        (
            {"tp": 2},
            {"tp": 2, "sizing": sizing(context_tokens=None)},
            "sizing.context_tokens is None, the other ranks said 64",
        ),
    ],
    ids=["tp", "pp", "page", "context"],
)
def test_ranks_that_contradict_each_other_are_told_the_field_and_both_values(
    daemon: DaemonProcess,
    ranks: Ranks,
    first: dict[str, Any],
    second: dict[str, Any],
    problem: str,
) -> None:
    waiting = ranks.start(ranks.attach, 0, **first)
    wait_until("rank 0 waits", lambda: waits(daemon, ranks.group))

    with pytest.raises(AttachError) as refused:
        ranks.attach(1, **second)

    assert refused.value.code is ErrorCode.GROUP_MISMATCH
    assert problem in refused.value.message
    assert ranks.group in refused.value.message
    with pytest.raises(AttachError, match="incomplete"):
        waiting.result(10)


@pytest.mark.case("40")
def test_another_declaration_is_refused_by_both_digests(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    waiting = ranks.start(ranks.attach, 0, tp=2)
    wait_until("rank 0 waits", lambda: waits(daemon, ranks.group))

    with pytest.raises(
        AttachError, match=r"declare is digest [0-9a-f]{16}, the other ranks said digest"
    ):
        ranks.attach(1, tp=2, declare=other_model())
    with pytest.raises(AttachError, match="incomplete"):
        waiting.result(10)


@pytest.mark.parametrize(
    ("modes", "shown"),
    [
        ((Mode.MIRRORED, Mode.LEADER), "mirrored, leader"),
        ((Mode.LEADER, Mode.LEADER), "leader, leader"),
        ((Mode.FOLLOWER, Mode.FOLLOWER), "follower, follower"),
        ((Mode.MIRRORED, Mode.FOLLOWER), "mirrored, follower"),
    ],
)
def test_modes_that_do_not_go_together_are_refused_to_every_rank(
    ranks: Ranks, modes: tuple[Mode, Mode], shown: str
) -> None:
    started = [ranks.start(ranks.attach, rank, tp=2, mode=modes[rank]) for rank in range(2)]

    for one in started:
        with pytest.raises(AttachError, match=f"stage 0 has modes {shown}") as refused:
            one.result(10)
        assert refused.value.code is ErrorCode.GROUP_MISMATCH


def test_mirrored_ranks_of_different_programs_are_refused(ranks: Ranks) -> None:
    started = [ranks.start(ranks.attach, rank, tp=2, program=rank) for rank in range(2)]

    for one in started:
        with pytest.raises(AttachError, match="programs 0, 1") as refused:
            one.result(10)
        assert refused.value.code is ErrorCode.GROUP_MISMATCH


def test_a_rank_that_is_taken_is_refused_with_the_process_that_has_it(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    client = ranks.attach()

    with pytest.raises(AttachError, match=r"rank 0 of group '.*' is attached already, as process"):
        ranks.attach()

    client.ping()


def test_a_rank_that_waits_is_not_replaced_by_a_second_one(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    waiting = ranks.start(ranks.attach, 0, tp=2)
    wait_until("rank 0 waits", lambda: waits(daemon, ranks.group))

    with pytest.raises(AttachError) as refused:
        ranks.attach(0, tp=2)

    assert refused.value.code is ErrorCode.RANK_TAKEN
    with pytest.raises(AttachError, match="incomplete"):
        waiting.result(10)


def test_missing_ranks_are_named_after_the_deadline(ranks: Ranks) -> None:
    started = [
        ranks.start(ranks.attach, rank, stage=stage, tp=2, pp=2, declare=two_stages())
        for stage, rank in ((0, 0), (1, 1))
    ]

    for one in started:
        with pytest.raises(AttachError) as refused:
            one.result(10)
        assert refused.value.code is ErrorCode.GROUP_INCOMPLETE
        assert refused.value.retry
        assert refused.value.message == (
            f"group {ranks.group!r} is incomplete after 300 ms: missing stage 0 rank 1, "
            f"stage 1 rank 0"
        )


def test_ranks_that_were_turned_away_may_come_again(ranks: Ranks) -> None:
    with pytest.raises(AttachError, match="missing stage 0 rank 1"):
        ranks.attach(0, tp=2)

    clients = ranks.attach_all(2)

    assert [client.incarnation for client in clients] == [1, 1]


def test_a_rank_that_waits_and_leaves_makes_room(daemon: DaemonProcess, ranks: Ranks) -> None:
    with peers(daemon.address) as (peer,):
        peer.say_hello(ranks.group, tp=2)
        wait_until("rank 0 waits", lambda: waits(daemon, ranks.group))
    wait_until("rank 0 is forgotten", lambda: daemon.group(ranks.group) is None)

    assert len(ranks.attach_all(2)) == 2


@pytest.mark.case("116")
def test_health_names_the_ranks_that_a_group_waits_for(start: Callable[..., DaemonProcess]) -> None:
    daemon = start("--group-wait-ms", "60000")
    with peers(daemon.address) as (peer,):
        peer.say_hello("lonely", tp=3, rank=1)

        wait_until("health says so", lambda: daemon.health()["problems"])
        assert daemon.health()["problems"] == [
            "group lonely waits for stage 0 rank 0, stage 0 rank 2"
        ]
        assert daemon.health()["ok"] is True


@pytest.mark.case("13")
def test_a_budget_below_the_floor_is_refused_with_the_bytes_that_lack(ranks: Ranks) -> None:
    with pytest.raises(AttachError) as refused:
        ranks.attach(sizing=sizing(budget_bytes=64 << 10))
    message = refused.value.message
    assert refused.value.code is ErrorCode.BAD_MODEL
    short = re.search(r"(\d+) bytes short|short (?:by|of) (\d+) bytes|(\d+) bytes more", message)
    assert short is not None, message
    lacking_bytes = int(next(found for found in short.groups() if found))

    with pytest.raises(AttachError):
        ranks.attach(sizing=sizing(budget_bytes=(64 << 10) + lacking_bytes - 1))
    client = ranks.attach(sizing=sizing(budget_bytes=(64 << 10) + lacking_bytes))

    admit(client, [1])


@pytest.mark.parametrize("budget_bytes", [0, -1, 1])
def test_a_budget_that_is_none_is_refused_with_its_value(ranks: Ranks, budget_bytes: int) -> None:
    with pytest.raises(AttachError) as refused:
        ranks.attach(sizing=sizing(budget_bytes=budget_bytes))

    assert refused.value.code is ErrorCode.BAD_MODEL
    assert str(budget_bytes) in refused.value.message


def test_a_budget_over_the_hosts_memory_is_refused_with_both_sizes(ranks: Ranks) -> None:
    with pytest.raises(AttachError, match=r"asks \d+ bytes .* this host has \d+") as refused:
        ranks.attach(declare=wide_model(), sizing=sizing(budget_bytes=2 << 40))

    assert "lower budget_bytes" in refused.value.message


@pytest.mark.case("32")
def test_the_smallest_budget_is_granted_to_all_and_says_whose_it_was(ranks: Ranks) -> None:
    budgets = [BUDGET_BYTES * 2, BUDGET_BYTES, BUDGET_BYTES * 3]

    clients = ranks.attach_all(3, changes=[{"sizing": sizing(budget_bytes=b)} for b in budgets])

    assert [client.welcome.asked_bytes for client in clients] == budgets
    assert {client.welcome.granted_bytes for client in clients} == {BUDGET_BYTES}
    assert {client.welcome.minimum_rank for client in clients} == {1}
    assert {client.plan.arena_bytes for client in clients} == {clients[0].plan.arena_bytes}
    assert clients[0].plan.total_bytes <= BUDGET_BYTES


def test_one_budget_below_the_floor_is_told_to_every_rank(ranks: Ranks) -> None:
    budgets = [BUDGET_BYTES, 64 << 10]

    started = [
        ranks.start(ranks.attach, rank, tp=2, sizing=sizing(budget_bytes=budgets[rank]))
        for rank in range(2)
    ]

    errors = [one.exception(10) for one in started]
    assert all(isinstance(error, AttachError) for error in errors), errors
    assert any("short" in str(error) for error in errors), errors


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (DeclaredConfig(config_json=b""), "config"),
        (DeclaredConfig(config_json=b"{"), "config"),
        (DeclaredConfig(config_json=b"[]"), "config"),
        (
            DeclaredConfig(config_json=b'{"model_type": "mystery", "num_hidden_layers": 2}'),
            "model_type 'mystery' is unknown",
        ),
        (DeclaredConfig(config_json=b"\xff\xfe"), "config"),
        (DeclaredLayers(layers=(), context_tokens=64), "layer"),
        (msgspec.structs.replace(LAYERS, context_tokens=0), "context"),
        (msgspec.structs.replace(LAYERS, context_tokens=-4), "context"),
    ],
    ids=["empty", "broken", "list", "unknown", "binary", "no-layers", "context-0", "context-neg"],
)
def test_a_model_that_cannot_be_read_is_refused_by_what_is_wrong(
    ranks: Ranks, declare: Any, problem: str
) -> None:
    with pytest.raises(AttachError) as refused:
        ranks.attach(declare=declare, sizing=SizingInputs(budget_bytes=BUDGET_BYTES))

    assert refused.value.code is ErrorCode.BAD_MODEL
    assert problem in refused.value.message


def test_a_configuration_that_is_not_there_is_named(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(f"cannot read {tmp_path / 'config.json'}")):
        ranks.attach(declare=tmp_path)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("ipc:///tmp/kvd-nobody/kvd.sock", "no daemon answers at /tmp/kvd-nobody/kvd.sock.fd"),
        ("ipc://" + "/long" * 30, "has 153 bytes, a Unix socket takes 107"),
        ("tcp://localhost:1", "only ipc:// is spoken, not tcp://"),
        ("", "the address of the daemon is empty"),
    ],
)
def test_an_address_without_a_daemon_is_named(address: str, problem: str) -> None:
    with Ranks(address, "g") as ranks:
        with pytest.raises((UnreachableError, UsageError)) as refused:
            ranks.attach()
        assert problem in refused.value.message


def test_groups_of_different_models_run_side_by_side(daemon: DaemonProcess, group: str) -> None:
    with Ranks(daemon.address, group) as one, Ranks(daemon.address, group + "b") as other:
        first, second = one.attach(), other.attach(declare=other_model())

        admit(first, [1])
        admit(second, [1])

        assert len(first.plan.bands) == len(second.plan.bands) + 1


def test_a_group_may_come_back_as_another_model(daemon: DaemonProcess, ranks: Ranks) -> None:
    ranks.attach().close()

    client = ranks.attach(declare=other_model())

    admit(client, [1])


def test_a_client_that_closes_ends_its_group_and_leaves_nothing(
    daemon: DaemonProcess, ranks: Ranks
) -> None:
    client: Client = ranks.attach()
    client.close()

    wait_until("the group is gone", lambda: daemon.group(ranks.group) is None)
    assert f"{ranks.group} code=RANK_LOST" in daemon.log()


def waits(daemon: DaemonProcess, group: str) -> bool:
    """Return whether a rank of the group waits for others."""
    found = [one for one in daemon.stats()["groups"] if one["name"] == group]
    return bool(found and found[0]["waiting_for"])
