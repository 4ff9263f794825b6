"""Arenas on GPUs as the daemon sees them: asks a helper process, waits for it only when it has to.

The helper takes some tenths of a second to start and less than a millisecond to answer. It is
started when a group's ranks say hello and watched by the loop meanwhile, so that other groups never
wait for it.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from kvd.errors import ServeError
from kvd.serve.cuda_arena import Create, Created, Greeting
from kvd_client.device.descriptors import close_all, receive_message, send_message, socket_pair
from kvd_proto.errors import ErrorCode, FrameError

if TYPE_CHECKING:
    import asyncio
    import socket

START_WAIT_S: Final = 60.0
"""Loading a driver for eight GPUs was seen to take seconds; what takes longer hangs."""
ANSWER_WAIT_S: Final = 10.0
"""Creating memory takes about a millisecond, whatever its size."""
EXIT_WAIT_S: Final = 2.0
HELPER: Final = ("-P", "-m", "kvd.serve.cuda_arena")
UUID_PREFIX: Final = "GPU-"

_greetings: Final = msgspec.json.Decoder(Greeting)
_created: Final = msgspec.json.Decoder(Created)


class CudaArenas:
    """Arenas on the GPUs that a helper sees, or on one of them."""

    def __init__(
        self, gpu: str | None, *, log: Callable[[str], None], helper: Sequence[str] = ()
    ) -> None:
        """Start a helper and wait for what it sees; raises ServeError.

        ``gpu`` is the only GPU to use, None for all. ``helper`` are the arguments of the Python
        interpreter that start another one than `HELPER`.
        """
        self._log = log
        self._helper = tuple(helper or HELPER)
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._greeted = False
        self._problem = ""
        self._rooms_bytes: dict[str, int] = {}
        self._waiting: list[Callable[[], None]] = []
        self._start()
        self._greet(START_WAIT_S)
        if self._problem:
            raise ServeError(self._problem, code=ErrorCode.DEVICE)
        wanted = None if gpu is None else canonical_uuid(gpu)
        seen = self._rooms_bytes
        if not seen or (wanted is not None and wanted not in seen):
            self._end()
            raise ServeError(
                f"gpu = {gpu or 'auto'}: there is no such GPU here; visible are "
                f"{', '.join(seen) or 'none'}",
                code=ErrorCode.BAD_SETTING,
            )
        if wanted is not None:
            self._rooms_bytes = {wanted: seen[wanted]}

    @property
    def device_name(self) -> str:
        """Return ``cuda``."""
        return "cuda"

    def place_of(self, gpu_uuid: str) -> str:
        """Return the GPU that a rank works on; raises ServeError for another one, or for none."""
        if not gpu_uuid:
            raise ServeError(
                "this daemon serves GPUs and the hello names none; attach with a CUDA device, or "
                "start the daemon with --device host",
                code=ErrorCode.BAD_HELLO,
            )
        place = canonical_uuid(gpu_uuid)
        if place not in self._rooms_bytes:
            raise ServeError(
                f"gpu_uuid {gpu_uuid!r} is no GPU of this daemon, which serves "
                f"{', '.join(self._rooms_bytes)}",
                code=ErrorCode.BAD_HELLO,
            )
        return place

    def rooms_bytes(self) -> Mapping[str, int]:
        """Return the memory of each GPU; part of it may be in use."""
        return self._rooms_bytes

    def prepare(self, loop: "asyncio.AbstractEventLoop", on_ready: Callable[[], None]) -> bool:
        """Return whether a helper is up; if not, one is started and ``on_ready`` called then.

        A helper that cannot be had counts as ready: `create` then says why.
        """
        if self._greeted and self._is_up():
            return True
        self._waiting.append(on_ready)
        if len(self._waiting) > 1:
            return False
        if not self._is_up():
            self._start()
        assert self._sock is not None
        loop.add_reader(self._sock.fileno(), self._arrived, loop, self._sock.fileno())
        return False

    def create(self, name: str, size_bytes: int, place: str) -> int:
        """Return the descriptor of fresh memory on a GPU; raises ServeError.

        Whether it is there is only known when the memory is asked for: whoever else uses the GPU
        may have taken it.
        """
        if not self._is_up():
            # It left between two questions.
            self._start()
        if not self._greeted:
            self._greet(START_WAIT_S)
        if self._problem:
            raise ServeError(self._problem, code=ErrorCode.DEVICE, retry=True)
        answer, fds = self._ask(Create(place, size_bytes))
        if answer.problem or len(fds) != 1:
            close_all(fds)
            raise ServeError(
                f"{size_bytes} bytes for {name} cannot be had on {place}: "
                f"{answer.problem or f'{len(fds)} descriptors came'}",
                code=ErrorCode.DEVICE,
                retry=True,
            )
        return fds[0]

    def close(self) -> None:
        """End the helper."""
        self._end()

    # ---- inside ---------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start a helper, which greets when it is up; raises ServeError."""
        self._end()
        here, there = socket_pair()
        try:
            self._process = subprocess.Popen(
                (sys.executable, *self._helper, str(there.fileno()), str(os.getpid())),
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            here.close()
            raise ServeError(f"cannot start {sys.executable}: {error}") from error
        finally:
            there.close()
        self._sock = here
        self._greeted = False

    def _arrived(self, loop: "asyncio.AbstractEventLoop", descriptor: int) -> None:
        """Take in the greeting of a helper that the loop watched, and tell who waited."""
        loop.remove_reader(descriptor)
        self._greet(ANSWER_WAIT_S)
        waiting, self._waiting = self._waiting, []
        for on_ready in waiting:
            on_ready()

    def _greet(self, wait_s: float) -> None:
        """Receive what a helper says first."""
        self._greeted = True
        try:
            payload, _ = self._receive(wait_s, 0)
            greeting = _greetings.decode(payload)
        except (OSError, FrameError, msgspec.MsgspecError) as error:
            self._problem = f"the helper for CUDA memory did not get ready: {error}"
        else:
            self._problem = greeting.problem
            # What a later helper sees is no reason to serve other GPUs.
            if not self._rooms_bytes:
                self._rooms_bytes = {gpu.uuid: gpu.memory_bytes for gpu in greeting.gpus}
        if self._problem:
            self._log(f"event=helper_failed problem={self._problem!r}")
            self._end()

    def _ask(self, question: Create) -> tuple[Created, list[int]]:
        assert self._sock is not None
        try:
            self._sock.settimeout(ANSWER_WAIT_S)
            send_message(self._sock, msgspec.json.encode(question))
            payload, fds = self._receive(ANSWER_WAIT_S, 1)
        except (OSError, FrameError) as error:
            self._end()
            raise ServeError(
                f"the helper for CUDA memory failed: {error}", code=ErrorCode.DEVICE, retry=True
            ) from error
        try:
            return _created.decode(payload), fds
        except msgspec.MsgspecError as error:
            close_all(fds)
            self._end()
            raise ServeError(
                f"the helper for CUDA memory ended or said what nobody understands: {error}",
                code=ErrorCode.DEVICE,
                retry=True,
            ) from error

    def _receive(self, wait_s: float, fds_max: int) -> tuple[bytes, list[int]]:
        assert self._sock is not None
        self._sock.settimeout(wait_s)
        return receive_message(self._sock, fds_max)

    def _is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _end(self) -> None:
        """Part from the helper and reap it; one that does not end by itself is killed."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        process, self._process = self._process, None
        self._greeted = False
        if process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0 if process.poll() is not None else EXIT_WAIT_S)
        if process.poll() is None:
            process.kill()
            process.wait()


def canonical_uuid(text: str) -> str:
    """Return a GPU's UUID in the form of ``nvidia-smi``, from that or from the bare number."""
    bare = text.strip().removeprefix(UUID_PREFIX).lower()
    return UUID_PREFIX + bare
