"""What ``kvd doctor`` looks at: one function per question, each with a verdict and what to change.

Nothing here changes the host, and no CUDA context is made in this process: GPUs are listed by a
short-lived child, because a broken driver may hang or crash whoever asks it.
"""

import importlib.metadata
import json
import os
import platform
import socket
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, cast

from kvd.config import ServeSettings, Settings
from kvd.setting import SOCKET_PATH_BYTES_MAX, show_bytes
from kvd_client.device.descriptors import (
    close_all,
    create_memory,
    descriptor_size,
    open_pidfd,
    peer_credentials,
    process_ended,
    receive_message,
    send_message,
    socket_pair,
)
from kvd_proto.errors import KvdError

PYTHON_MIN: Final = (3, 11)
GPU_WAIT_S: Final = 20.0
"""Loading a driver may take seconds; one that takes longer is not going to answer."""
PROCESS_WAIT_S: Final = 5.0
FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""PROC_PID_INIT_INO of Linux: the namespace of the host."""
LIBRARIES: Final = ("msgspec", "pyzmq", "numpy", "uvloop", "xxhash")

_LIST_GPUS: Final = """
import json, uuid
try:
    from cuda.bindings import driver
except ImportError:
    print(json.dumps({"missing": "cuda-bindings"}))
    raise SystemExit
def call(answer):
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        print(json.dumps({"error": answer[0].name}))
        raise SystemExit
    return answer[1] if len(answer) > 1 else None
call(driver.cuInit(0))
gpus = []
for place in range(call(driver.cuDeviceGetCount())):
    device = call(driver.cuDeviceGet(place))
    name = call(driver.cuDeviceGetName(96, device)).split(b"\\0")[0].decode()
    gpus.append([str(uuid.UUID(bytes=bytes(call(driver.cuDeviceGetUuid(device)).bytes))), name])
print(json.dumps({"gpus": gpus}))
"""


class Verdict(StrEnum):
    """How an answer is to be read."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; kvd runs."""
    WARN = "warn"
    """kvd runs, but slower or less safely than it could."""
    FAIL = "fail"
    """kvd does not run like this."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question about the host."""

    question: str
    verdict: Verdict
    found: str
    change: str = ""


def examine(settings: Settings) -> Iterator[Answer]:
    """Yield the answers to all questions, the basic ones first."""
    yield check_python()
    yield check_assertions()
    yield from check_libraries()
    yield check_kernel()
    yield check_descriptors()
    yield check_pidfd()
    yield check_pid_namespace(os.readlink("/proc/self/ns/pid"), pid=os.getpid())
    yield check_runtime_dir(settings.serve.runtime_dir)
    yield check_socket_lengths(settings.serve)
    yield check_daemon(settings.serve.socket_path)
    yield check_cores(len(os.sched_getaffinity(0)), busy_poll_us=settings.serve.busy_poll_us)
    yield check_memory(settings.sizing.budget_bytes, limit_bytes=_memory_limit_bytes())
    yield from check_gpus(_ask_driver())


def check_python() -> Answer:
    """Return whether this Python is new enough and built for speed."""
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < PYTHON_MIN:
        wanted = ".".join(str(part) for part in PYTHON_MIN)
        return Answer("python", Verdict.FAIL, found, f"use Python {wanted} or newer")
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    if not is_optimized_build(arguments, base_prefix=sys.base_prefix):
        return Answer(
            "python",
            Verdict.WARN,
            f"{found}, built without profile-guided optimization",
            "a distribution's Python answers batches 5 to 10 % faster",
        )
    return Answer("python", Verdict.OK, found)


def is_optimized_build(config_arguments: str, *, base_prefix: str) -> bool:
    """Return whether a Python was built with profile-guided optimization.

    Debian and its children do so without the configure option, and leave no trace of it.
    """
    return "--enable-optimizations" in config_arguments or base_prefix == "/usr"


def check_assertions() -> Answer:
    """Return whether assertions run; kvd relies on them to stop before memory is corrupted."""
    if sys.flags.optimize:
        return Answer(
            "assertions",
            Verdict.FAIL,
            f"switched off by -{'O' * sys.flags.optimize}",
            "start Python without -O and without PYTHONOPTIMIZE",
        )
    return Answer("assertions", Verdict.OK, "run")


def check_libraries() -> Iterator[Answer]:
    """Yield the versions of the libraries on the daemon's path."""
    for name in LIBRARIES:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Answer(name, Verdict.FAIL, "not installed", "install kvd with its dependencies")
            continue
        if name == "pyzmq":
            import zmq

            if not zmq.has("ipc"):
                yield Answer(name, Verdict.FAIL, "libzmq without ipc", "use the wheel from PyPI")
                continue
            found += f", libzmq {zmq.zmq_version()}"
        yield Answer(name, Verdict.OK, found)


def check_kernel() -> Answer:
    """Return the system; everything that kvd needs of it is tried by the checks below."""
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform != "linux":
        return Answer("kernel", Verdict.FAIL, found, "kvd needs Linux: memfd, pidfd, SCM_RIGHTS")
    return Answer("kernel", Verdict.OK, found)


def check_descriptors() -> Answer:
    """Return whether memory without a name can be made and handed to another process."""
    question = "memory descriptors"
    size_bytes = os.sysconf("SC_PAGE_SIZE")
    held: list[int] = []
    here, there = socket_pair()
    with here, there:
        try:
            held.append(create_memory("kvd-doctor", size_bytes))
            send_message(here, b"doctor", held)
            _, received = receive_message(there, 1)
            held += received
            sizes = [descriptor_size(descriptor) for descriptor in received]
        except (KvdError, OSError) as error:
            return Answer(question, Verdict.FAIL, str(error), "allow memfd_create and SCM_RIGHTS")
        finally:
            close_all(held)
    if sizes != [size_bytes]:
        return Answer(
            question,
            Verdict.FAIL,
            f"sent {size_bytes} bytes, arrived {sizes}",
            "see the kernel log",
        )
    return Answer(question, Verdict.OK, "memfd made and passed on")


def check_pidfd() -> Answer:
    """Return whether the end of another process can be seen, which is how dead ranks are found."""
    question = "pidfd"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    try:
        pidfd = open_pidfd(child.pid)
    except KvdError as error:
        return Answer(question, Verdict.FAIL, error.message, "allow pidfd_open; Linux 5.3 has it")
    finally:
        child.wait(PROCESS_WAIT_S)
    try:
        if not process_ended(pidfd):
            return Answer(question, Verdict.FAIL, "the end of a child was not seen", "see seccomp")
    finally:
        os.close(pidfd)
    return Answer(question, Verdict.OK, "the end of a child was seen")


def check_pid_namespace(namespace: str, *, pid: int) -> Answer:
    """Return whether daemon and clients can see each other's processes."""
    question = "pid namespace"
    if namespace == FIRST_PID_NAMESPACE:
        return Answer(question, Verdict.OK, "the host's")
    remedy = "run daemon and engine in one pid namespace: shareProcessNamespace, --pid=host"
    if pid == 1:
        remedy += "; two containers that are both pid 1 also collide in CUDA IPC"
    return Answer(question, Verdict.WARN, f"a container's, here pid {pid}", remedy)


def check_runtime_dir(runtime_dir: Path) -> Answer:
    """Return whether the runtime directory is ours alone, or can be made."""
    question = "runtime directory"
    try:
        status = runtime_dir.stat(follow_symlinks=False)
    except FileNotFoundError:
        parent = next(path for path in runtime_dir.parents if path.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            return Answer(
                question,
                Verdict.FAIL,
                f"{runtime_dir} is missing and {parent} is not writable",
                f"create it: install -d -m 0700 -o {os.geteuid()} {runtime_dir}",
            )
        return Answer(question, Verdict.OK, f"{runtime_dir}, made at the first start")
    except OSError as error:
        reason = error.strerror or "unreadable"
        return Answer(
            question, Verdict.FAIL, f"{runtime_dir}: {reason}", "choose another --runtime-dir"
        )
    mode = stat.S_IMODE(status.st_mode)
    found = f"{runtime_dir}, mode {mode:04o}, uid {status.st_uid}"
    if not stat.S_ISDIR(status.st_mode):
        return Answer(question, Verdict.FAIL, f"{runtime_dir} is no directory", "remove it")
    if status.st_uid != os.geteuid():
        return Answer(
            question, Verdict.FAIL, found, f"chown it to uid {os.geteuid()}, or run as its owner"
        )
    if mode & 0o077:
        return Answer(question, Verdict.FAIL, found, f"chmod 0700 {runtime_dir}")
    return Answer(question, Verdict.OK, found)


def check_socket_lengths(serve: ServeSettings) -> Answer:
    """Return the longest socket path; the settings refuse those over the limit."""
    paths = (serve.socket_path, serve.stats_path, serve.descriptor_path, serve.hold_path)
    longest = max(paths, key=lambda path: len(os.fsencode(path)))
    length_bytes = len(os.fsencode(longest))
    return Answer(
        "socket paths",
        Verdict.OK,
        f"at most {length_bytes} of {SOCKET_PATH_BYTES_MAX} bytes: {longest}",
    )


def check_daemon(socket_path: Path) -> Answer:
    """Return who listens on the socket, if anybody."""
    question = "daemon"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(PROCESS_WAIT_S)
        try:
            sock.connect(os.fspath(socket_path))
        except FileNotFoundError:
            return Answer(question, Verdict.NOTE, f"none at {socket_path}", "start one: kvd serve")
        except ConnectionRefusedError:
            return Answer(
                question,
                Verdict.NOTE,
                f"none at {socket_path}; the file is left over",
                "nothing: the next start replaces it",
            )
        except OSError as error:
            return Answer(
                question,
                Verdict.WARN,
                f"{socket_path}: {error.strerror or error}",
                "run as the daemon's user, or name its --socket",
            )
        peer = peer_credentials(sock)
    return Answer(question, Verdict.OK, f"pid {peer.pid}, uid {peer.uid}, at {socket_path}")


def check_cores(core_count: int, *, busy_poll_us: int) -> Answer:
    """Return whether the daemon's thread finds a core beside those of the ranks."""
    found = f"{core_count} usable"
    if busy_poll_us and core_count < 4:
        return Answer(
            "cores", Verdict.WARN, f"{found}, busy poll {busy_poll_us} us", "set busy_poll_us = 0"
        )
    if core_count < 2:
        return Answer("cores", Verdict.WARN, found, "give the daemon a core beside the engine's")
    return Answer("cores", Verdict.OK, found)


def check_memory(budget_bytes: int, *, limit_bytes: int) -> Answer:
    """Return whether a default arena fits into main memory, where the host device keeps it."""
    found = f"{limit_bytes / (1 << 30):.1f} GiB, budget {show_bytes(budget_bytes)} per rank"
    if budget_bytes > limit_bytes:
        return Answer(
            "main memory",
            Verdict.NOTE,
            found,
            "on the host device give a --budget that fits; on a GPU this does not matter",
        )
    return Answer("main memory", Verdict.OK, found)


def check_gpus(answer: dict[str, object]) -> Iterator[Answer]:
    """Yield one line per GPU, by UUID, or why there is none."""
    if "missing" in answer:
        nodes = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
        found = f"device files {', '.join(nodes)}" if nodes else "no device files"
        change = "install kvd[cuda12] or kvd[cuda13] to use them" if nodes else ""
        yield Answer(
            "gpus", Verdict.NOTE, f"none looked for: no {answer['missing']}; {found}", change
        )
        return
    if "error" in answer:
        yield Answer(
            "gpus", Verdict.NOTE, f"none: {answer['error']}", "the host device works without"
        )
        return
    gpus = cast("list[list[str]]", answer["gpus"])
    if not gpus:
        yield Answer("gpus", Verdict.NOTE, "none", "the host device works without")
    for place, (uuid_text, name) in enumerate(gpus):
        yield Answer(f"gpu {place}", Verdict.OK, f"GPU-{uuid_text} {name}")


def _ask_driver() -> dict[str, object]:
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _LIST_GPUS],
            capture_output=True,
            text=True,
            timeout=GPU_WAIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"the driver did not answer within {GPU_WAIT_S:.0f} s"}
    try:
        return cast("dict[str, object]", json.loads(ran.stdout))
    except json.JSONDecodeError:
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        return {"error": last}


def _memory_limit_bytes() -> int:
    """Return what this process may use at most: its control group's limit, or all memory."""
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text("ascii").strip() if limit.exists() else "max"
    return min(total_bytes, int(text)) if text.isdigit() else total_bytes
