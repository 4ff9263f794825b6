"""Which processes the driver lists on this host's GPUs: ``python -m kvd.serve.driver_list``.

A short-lived child of the daemon, because whoever asks a driver may hang or crash with it. Prints
one line of JSON: the processes, or why what the driver says would prove nothing.
"""

import importlib
import json
import os
from typing import Any, Final

NVML_MODULE: Final = "pynvml"
"""From nvidia-ml-py; named and not imported, for it loads the driver's library."""
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode that Linux gives the namespace of the host (PROC_PID_INIT_INO)."""
KINDS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
"""A process is in the list of the kind of context that it has."""


def list_processes(nvml: Any) -> list[int]:
    """Return every process that has a context on any GPU; raises what NVML raises."""
    nvml.nvmlInit()
    found: dict[int, None] = {}
    for place in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(place)
        for kind in KINDS:
            found.update({int(one.pid): None for one in getattr(nvml, kind)(gpu)})
    return sorted(found)


def answer() -> dict[str, Any]:
    """Return ``pids``, or a ``problem``."""
    if os.stat("/proc/self/ns/pid").st_ino != FIRST_PID_NAMESPACE:
        # The driver numbers processes as the host does: a pid of ours may be anybody's there.
        return {"problem": "the daemon has a pid namespace of its own, the driver numbers others"}
    try:
        pids = list_processes(importlib.import_module(NVML_MODULE))
    except ImportError:
        return {"problem": "nvidia-ml-py is not installed"}
    except Exception as error:  # rim: whatever a driver does is one more reason to know nothing
        return {"problem": f"the driver was asked in vain: {type(error).__name__}: {error}"}
    if 0 in pids:
        return {"problem": "the driver lists a process without saying which"}
    return {"pids": pids}


if __name__ == "__main__":
    print(json.dumps(answer()), flush=True)
