"""What an engine process uses: attach to kvd, send batches, launch forwards, read tables.

Names are imported on first use: the daemon and the holder import `kvd_client.device` from here and
must not load a messaging library for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvd_client.aio import AsyncClient as AsyncClient
    from kvd_client.calls import STANDING as STANDING
    from kvd_client.calls import Batch as Batch
    from kvd_client.client import Client as Client
    from kvd_client.client import attach as attach
    from kvd_client.device.host_pool import HostPool as HostPool
    from kvd_client.errors import AttachError as AttachError
    from kvd_client.errors import ClosedError as ClosedError
    from kvd_client.errors import DeadlineError as DeadlineError
    from kvd_client.errors import DeviceError as DeviceError
    from kvd_client.errors import DivergedError as DivergedError
    from kvd_client.errors import EndedError as EndedError
    from kvd_client.errors import FencedError as FencedError
    from kvd_client.errors import ForkedError as ForkedError
    from kvd_client.errors import KvdClientError as KvdClientError
    from kvd_client.errors import OperationError as OperationError
    from kvd_client.errors import PoisonedError as PoisonedError
    from kvd_client.errors import RankLostError as RankLostError
    from kvd_client.errors import RefusedError as RefusedError
    from kvd_client.errors import ReplyError as ReplyError
    from kvd_client.errors import StepOrderError as StepOrderError
    from kvd_client.errors import TablesError as TablesError
    from kvd_client.errors import UnknownRequestError as UnknownRequestError
    from kvd_client.errors import UnreachableError as UnreachableError
    from kvd_client.errors import UsageError as UsageError
    from kvd_client.launch import Step as Step
    from kvd_client.mock import MockTransport as MockTransport
    from kvd_client.results import Admitted as Admitted
    from kvd_client.results import Handle as Handle
    from kvd_client.results import Ragged as Ragged
    from kvd_client.results import ResolvedUnits as ResolvedUnits
    from kvd_client.results import Taken as Taken
    from kvd_client.transport import Transport as Transport
    from kvd_client.transport import ZmqTransport as ZmqTransport
    from kvd_proto.control import Mode as Mode
    from kvd_proto.control import Role as Role
    from kvd_proto.memory import SizingInputs as SizingInputs
    from kvd_proto.operations import StepAborted as StepAborted
    from kvd_proto.outcomes import Pump as Pump
    from kvd_proto.outcomes import Refusal as Refusal
    from kvd_proto.outcomes import ReleasedResult as ReleasedResult
    from kvd_proto.outcomes import Skipped as Skipped
    from kvd_proto.outcomes import Verdict as Verdict

__all__ = [
    "STANDING",
    "Admitted",
    "AsyncClient",
    "AttachError",
    "Batch",
    "Client",
    "ClosedError",
    "DeadlineError",
    "DeviceError",
    "DivergedError",
    "EndedError",
    "FencedError",
    "ForkedError",
    "Handle",
    "HostPool",
    "KvdClientError",
    "MockTransport",
    "Mode",
    "OperationError",
    "PoisonedError",
    "Pump",
    "Ragged",
    "RankLostError",
    "Refusal",
    "RefusedError",
    "ReleasedResult",
    "ReplyError",
    "ResolvedUnits",
    "Role",
    "SizingInputs",
    "Skipped",
    "Step",
    "StepAborted",
    "StepOrderError",
    "TablesError",
    "Taken",
    "Transport",
    "UnknownRequestError",
    "UnreachableError",
    "UsageError",
    "Verdict",
    "ZmqTransport",
    "attach",
]

_HOMES = {
    "Admitted": "kvd_client.results",
    "AsyncClient": "kvd_client.aio",
    "AttachError": "kvd_client.errors",
    "Batch": "kvd_client.calls",
    "Client": "kvd_client.client",
    "ClosedError": "kvd_client.errors",
    "DeadlineError": "kvd_client.errors",
    "DeviceError": "kvd_client.errors",
    "DivergedError": "kvd_client.errors",
    "EndedError": "kvd_client.errors",
    "FencedError": "kvd_client.errors",
    "ForkedError": "kvd_client.errors",
    "Handle": "kvd_client.results",
    "KvdClientError": "kvd_client.errors",
    "MockTransport": "kvd_client.mock",
    "Mode": "kvd_proto.control",
    "OperationError": "kvd_client.errors",
    "PoisonedError": "kvd_client.errors",
    "Pump": "kvd_proto.outcomes",
    "HostPool": "kvd_client.device.host_pool",
    "Ragged": "kvd_client.results",
    "ReleasedResult": "kvd_proto.outcomes",
    "ResolvedUnits": "kvd_client.results",
    "RankLostError": "kvd_client.errors",
    "Refusal": "kvd_proto.outcomes",
    "RefusedError": "kvd_client.errors",
    "ReplyError": "kvd_client.errors",
    "Role": "kvd_proto.control",
    "STANDING": "kvd_client.calls",
    "SizingInputs": "kvd_proto.memory",
    "Skipped": "kvd_proto.outcomes",
    "Step": "kvd_client.launch",
    "StepAborted": "kvd_proto.operations",
    "StepOrderError": "kvd_client.errors",
    "TablesError": "kvd_client.errors",
    "Taken": "kvd_client.results",
    "Transport": "kvd_client.transport",
    "UnknownRequestError": "kvd_client.errors",
    "UnreachableError": "kvd_client.errors",
    "UsageError": "kvd_client.errors",
    "Verdict": "kvd_proto.outcomes",
    "ZmqTransport": "kvd_client.transport",
    "attach": "kvd_client.client",
}


def __getattr__(name: str) -> Any:
    """Import the module that a public name lives in."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kvd_client' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
