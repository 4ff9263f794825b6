"""Messages that are lost, doubled, repeated and late change nothing of what is decided."""

from collections.abc import Callable

import pytest

from kvd.testing.faults import Fault, FaultRates, FaultyTransport, LostError
from kvd_client import Client
from kvd_client.transport import ZmqTransport
from tests.e2e.daemon_process import DaemonProcess
from tests.e2e.ranks import Ranks
from tests.e2e.schedule import finish, passes_of, run_pass

PASSES = passes_of(11, 150)
RATES = FaultRates(
    lose_request_permille=60,
    lose_answer_permille=60,
    double_permille=60,
    repeat_old_permille=60,
    delay_permille=20,
)


def insist(client: Client, call: Callable[[], object]) -> None:
    """Call once; as long as messages get lost, have the session complete what it owes."""
    while True:
        try:
            call()
        except LostError:
            call = client.ping
        else:
            return


def run(client: Client) -> str:
    for number, one in enumerate(PASSES, start=1):
        insist(client, lambda one=one, number=number: run_pass(client, one, step=number - 1))
        with client.launch() as step:
            step.submit(lambda: None)
    insist(client, lambda: finish(client, step=len(PASSES)))
    return f"{client.applied} {client.standing.tolist()}"


@pytest.mark.slow
def test_faults_of_messages_change_nothing(daemon: DaemonProcess, ranks: Ranks) -> None:
    faulty = [
        FaultyTransport(ZmqTransport(daemon.address), rates=RATES, seed=f"rank {rank}")
        for rank in range(2)
    ]
    clients = ranks.attach_all(2, changes=[{"transport": one} for one in faulty])
    for one in faulty:
        one.armed = True
    ends = ranks.each(clients, run)
    for one in faulty:
        one.armed = False
    assert ends[0] == ends[1]
    assert set(faulty[0].counts) == set(Fault)
    assert min(faulty[0].counts.values()) > 0
    for client in clients:
        client.check_tables()
    with Ranks(daemon.address, f"{ranks.group}-calm") as calm:
        assert run(calm.attach()).split(" ", 1)[0] == ends[0].split(" ", 1)[0]
