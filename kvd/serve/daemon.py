"""The daemon: sockets, loop and signals around the dispatcher.

One thread runs everything that decides. It imports neither torch nor cupy and makes no driver call,
so nothing that happens on a GPU can stop it.
"""

import gc
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING

import uvloop

from kvd import __version__
from kvd.alloc.checks import CheckLevel
from kvd.config import ServeSettings, Settings
from kvd.errors import ServeError
from kvd.serve.arena import Arenas, HostArenas
from kvd.serve.dispatch import Dispatcher
from kvd.serve.driver import DriverList
from kvd.serve.gpus import CudaArenas
from kvd.serve.group import GroupSettings
from kvd.serve.lifeline import LifelineServer
from kvd.serve.memory import DescriptorKeeper
from kvd.serve.metrics import start_metrics
from kvd.serve.observe import Observatory, Published
from kvd.serve.quiet import DriverCheck
from kvd.serve.recorder import TraceRecorder
from kvd.serve.router import Router
from kvd.serve.runtime import (
    DaemonLock,
    admit_other_users,
    clear_socket,
    prepare_directory,
    raise_descriptor_limit,
)
from kvd.serve.snapshot import build_document
from kvd_proto.errors import ErrorCode, KvdError
from kvd_proto.memory import SizingInputs

if TYPE_CHECKING:
    import asyncio

PUBLISH_S = 0.1
"""How often statistics are published and the loop gives a sign of life."""
COLLECT_AFTER_IDLE_S = 1.0
"""Garbage is collected only when nothing came for this long; a collection costs milliseconds."""
FAREWELL_S = 1.0
"""How long a stopping daemon waits for clients to hang up by themselves."""


class Daemon:
    """A daemon that is bound and ready; `run` serves until it is told to stop."""

    def __init__(
        self, settings: Settings, *, keeper: DescriptorKeeper, log: Callable[[str], None]
    ) -> None:
        """Lock, bind and plan; raises KvdError and leaves nothing behind."""
        if not __debug__:
            raise ServeError("kvd serve needs its assertions: start Python without -O")
        serve = settings.serve
        prepare_directory(serve.runtime_dir)
        self._log = log
        self._epoch = secrets.randbits(62) | 1
        self._started_at = time()
        self._address = f"ipc://{serve.socket_path}"
        self._published = Published()
        self._last_batch_count = 0
        self._idle_since = monotonic()
        self._collected = False
        self._failure: KvdError | None = None
        self._drain_wait_s = serve.drain_wait_ms / 1000
        with ExitStack() as undo:
            lock = DaemonLock(Path(f"{serve.socket_path}.lock"))
            undo.callback(lock.release)
            self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            undo.callback(self._loop.close)
            self._arenas = open_arenas(serve, log=log)
            undo.callback(self._arenas.close)
            driver = DriverList() if serve.device == "cuda" else None
            if driver is not None:
                undo.callback(driver.close)
            self._dispatcher = Dispatcher(
                self._loop,
                settings=group_settings(
                    settings, epoch=self._epoch, arenas=self._arenas, driver=driver
                ),
                keeper=keeper,
                send=self._send,
                log=log,
                recorder=(
                    None
                    if serve.trace_dir is None
                    else TraceRecorder(
                        serve.trace_dir,
                        bytes_max=serve.trace_bytes_max,
                        epoch=self._epoch,
                        log=log,
                    )
                ),
            )
            self._open_sockets(serve, undo)
            if serve.metrics_port:
                start_metrics(serve.metrics_host, serve.metrics_port, self._published)
            self._undo = undo.pop_all()

    def _open_sockets(self, serve: ServeSettings, undo: ExitStack) -> None:
        """Bind all three sockets; the lock is held, so whatever is there is a leftover."""
        self._lifelines = LifelineServer(
            self._loop,
            serve.descriptor_path,
            epoch=self._epoch,
            allowed_uids=serve.allowed_uids,
            clients_count_max=raise_descriptor_limit(),
            owner=self._dispatcher.lobby,
            log=self._log,
        )
        undo.callback(self._lifelines.close)
        self._dispatcher.lobby.attach_lifelines(self._lifelines)
        for path in (serve.socket_path, serve.stats_path):
            clear_socket(path)
        undo.callback(serve.socket_path.unlink, missing_ok=True)
        self._router = Router(
            self._loop,
            address=self._address,
            frame_bytes_max=serve.frame_bytes_max,
            busy_poll_us=serve.busy_poll_us,
            on_message=self._dispatcher.message,
            after_message=self._dispatcher.after_send,
        )
        # Before the lifelines end, so that clients read the last answers before they read the end.
        undo.callback(self._router.close)
        undo.callback(serve.stats_path.unlink, missing_ok=True)
        self._observatory = Observatory(f"ipc://{serve.stats_path}", self._published)
        undo.callback(self._observatory.close)
        if serve.allowed_uids:
            admit_other_users(
                serve.runtime_dir, (serve.socket_path, serve.stats_path, serve.descriptor_path)
            )

    @property
    def address(self) -> str:
        """Return where schedulers connect."""
        return self._address

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT; ``on_ready`` is called once everything answers.

        Raises the KvdError that ``on_ready`` raised.
        """
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signal_number, self._stop)
        self._publish()
        self._observatory.start()
        # What start-up left behind is never garbage; collecting it again would cost milliseconds.
        gc.collect()
        gc.freeze()
        gc.disable()
        # From inside the loop: a signal that comes before it runs would be lost, and whoever reads
        # that the daemon is ready may stop it at once.
        self._loop.call_soon(self._announce, on_ready)
        try:
            self._loop.run_forever()
        finally:
            self._undo.close()
            self._log("event=stopped")
        if self._failure is not None:
            raise self._failure

    def _announce(self, on_ready: Callable[[], None]) -> None:
        try:
            on_ready()
        except KvdError as error:
            self._failure = error
            self._loop.stop()

    def _send(self, identity: bytes, header: bytes, body: bytes) -> None:
        self._router.send(identity, header, body)

    def _publish(self) -> None:
        """Publish statistics, give a sign of life, and collect garbage if nothing else is to do."""
        now = monotonic()
        batch_count = self._dispatcher.core_times.batch_count
        if batch_count != self._last_batch_count:
            self._last_batch_count = batch_count
            self._idle_since = now
            self._collected = False
        elif not self._collected and now - self._idle_since > COLLECT_AFTER_IDLE_S:
            gc.collect()
            gc.freeze()
            self._collected = True
        self._dispatcher.lobby.note_confirmed()
        self._published.document = build_document(
            self._dispatcher,
            daemon={
                "pid": os.getpid(),
                "build": __version__,
                "epoch": self._epoch,
                "started_at": self._started_at,
                "uptime_s": time() - self._started_at,
                "address": self._address,
                "device": self._arenas.device_name,
            },
            lost_replies=self._router.lost_count,
        )
        self._published.alive_at = now
        self._loop.call_later(PUBLISH_S, self._publish)

    def _stop(self) -> None:
        if self._dispatcher.lobby.draining:
            self._log("event=stop_now reason=second_signal")
            self._loop.stop()
            return
        self._log(f"event=draining running={self._dispatcher.lobby.running_count}")
        self._dispatcher.lobby.drain()
        self._watch_drain(self._loop.time() + self._drain_wait_s)

    def _watch_drain(self, deadline: float) -> None:
        """Stop once every incarnation ended at its gate, or at once past the deadline."""
        now = self._loop.time()
        if self._dispatcher.lobby.running_count:
            if now < deadline:
                self._loop.call_later(0.01, self._watch_drain, deadline)
                return
            self._dispatcher.lobby.end_all("the daemon is stopping")
        self._farewell(now + FAREWELL_S)

    def _farewell(self, deadline: float) -> None:
        if self._lifelines.connected_count and self._loop.time() < deadline:
            self._loop.call_later(0.01, self._farewell, deadline)
        else:
            self._loop.stop()


def open_arenas(serve: ServeSettings, *, log: Callable[[str], None]) -> Arenas:
    """Return where memory comes from; raises ServeError for a GPU that is not there."""
    if serve.device == "cuda":
        return CudaArenas(serve.gpu, log=log)
    if serve.gpu is not None:
        raise ServeError(
            f"gpu = {serve.gpu} goes with device = cuda, and device is host",
            code=ErrorCode.BAD_SETTING,
        )
    return HostArenas()


def group_settings(
    settings: Settings, *, epoch: int, arenas: Arenas, driver: DriverCheck | None
) -> GroupSettings:
    """Return what groups take from the settings."""
    serve, sizing = settings.serve, settings.sizing
    return GroupSettings(
        epoch=epoch,
        sizing=SizingInputs(
            budget_bytes=sizing.budget_bytes,
            page_tokens=sizing.page_tokens,
            context_tokens=sizing.context_tokens,
            running_requests_count=sizing.running_requests_count,
            state_share=sizing.state_share,
            state_slots=sizing.state_slots,
            chunk_tokens=sizing.chunk_tokens,
            draft_tokens=sizing.draft_tokens,
            kv_dtype=sizing.kv_dtype,
        ),
        level=CheckLevel[serve.check_level.upper()],
        leaks_raise=serve.idle_leaks == "raise",
        ring_entry_count_max=serve.log_ring_count,
        lag_entry_count_max=serve.rank_lag_count_max,
        idle_moves_max=serve.idle_move_units_max,
        batch_moves_max=serve.batch_move_units_max,
        group_wait_ms=serve.group_wait_ms,
        lag_wait_ms=serve.lag_wait_ms,
        quiet_wait_ms=serve.quiet_wait_ms,
        survivor_wait_ms=serve.survivor_wait_ms,
        heartbeat_ms=serve.heartbeat_ms,
        frame_bytes_max=serve.frame_bytes_max,
        arenas=arenas,
        driver=driver,
    )
