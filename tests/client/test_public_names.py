"""The package offers what it says, and loads little until it is asked."""

import subprocess
import sys

import kvd_client
from kvd_client import aio

GOLDEN = """
Admitted AsyncClient AttachError Batch Client ClosedError DeadlineError DeviceError DivergedError
EndedError FencedError ForkedError Handle HostPool KvdClientError MockTransport Mode OperationError
PoisonedError Pump Ragged RankLostError Refusal RefusedError ReleasedResult ReplyError ResolvedUnits
Role STANDING SizingInputs Skipped Step StepAborted StepOrderError TablesError Taken
Transport UnknownRequestError UnreachableError UsageError Verdict ZmqTransport attach
"""


def run_python(script: str) -> str:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_public_names_are_the_agreed_ones() -> None:
    assert sorted(kvd_client.__all__) == sorted(GOLDEN.split())


def test_all_is_sorted() -> None:
    def order(name: str) -> tuple[bool, bool, str]:
        return not name.isupper(), name.islower(), name

    assert sorted(kvd_client.__all__, key=order) == kvd_client.__all__


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(kvd_client, name) is not None for name in kvd_client.__all__)


def test_both_clients_offer_the_same_calls() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(kvd_client.Client) == public(kvd_client.AsyncClient)
    assert kvd_client.attach.__kwdefaults__ == aio.attach.__kwdefaults__


def test_importing_the_device_package_loads_no_messaging_library() -> None:
    script = (
        "import sys, kvd_client.device.descriptors;"
        "print(sorted({'zmq', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_a_client_that_makes_no_views_loads_no_torch() -> None:
    script = "import sys, kvd_client.client; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "False"
