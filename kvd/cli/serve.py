"""``kvd serve``: run the daemon."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from kvd.cli.flags import load_from_flags, setting_options
from kvd.config import (
    ServeSettings,
    ServiceManager,
    Settings,
    process_environment,
    service_manager,
)
from kvd.errors import ServeError
from kvd.hold.client import connect
from kvd.hold.spawn import spawn_holder
from kvd.hold.store import DescriptorHolder
from kvd.hold.systemd import DescriptorStore, notify_ready, notify_stopping
from kvd.serve.daemon import Daemon
from kvd.serve.eventlog import EventLog

Log = Callable[[str], None]
"""Takes a line that says what happened."""


@click.command()
@setting_options("serve", "sizing")
def serve(config_file: Path | None, **flags: str | None) -> None:
    """Run the daemon until SIGTERM; a second signal stops it at once.

    Prints one line when it is ready, and one line per event on stderr. Sizing settings apply where
    the hello of a group says nothing else.
    """
    settings = load_from_flags(config_file, flags)
    manager = service_manager(process_environment(), pid=os.getpid())
    event_log = EventLog(sys.stderr)
    try:
        _serve(settings, manager, log=event_log.write)
    finally:
        event_log.close()


def _serve(settings: Settings, manager: ServiceManager, *, log: Log) -> None:
    holder = _holder(settings.serve, manager, log)
    try:
        _start_cold(holder, log)
        daemon = Daemon(settings, keeper=holder, log=log)

        def announce() -> None:
            # First, because it may fail: then the daemon ends and was never said to be ready.
            if manager.notify_address is not None:
                notify_ready(manager.notify_address)
            click.echo(
                f"kvd serve: ready socket={daemon.address} device={settings.serve.device} "
                f"pid={os.getpid()}"
            )
            sys.stdout.flush()

        daemon.run(announce)
        if manager.notify_address is not None:
            notify_stopping(manager.notify_address)
    finally:
        holder.close()


def _holder(serve: ServeSettings, manager: ServiceManager, log: Log) -> DescriptorHolder:
    """Return who keeps the memory while the daemon restarts; raises ServeError."""
    if serve.holder == "external":
        return connect(serve.hold_path, log=log)
    if serve.holder == "systemd":
        if manager.notify_address is None:
            raise ServeError(
                "holder = systemd needs a service manager that passes NOTIFY_SOCKET; start the "
                "daemon through its unit file, or choose holder = own or external"
            )
        return DescriptorStore(manager.notify_address, manager.descriptor_names)
    log("event=own_holder note='memory and contents end with this daemon'")
    return spawn_holder(log=log)


def _start_cold(holder: DescriptorHolder, log: Log) -> None:
    """Drop what an earlier daemon left: without a journal nobody can say what it means.

    It cannot be a living daemon's: a holder serves one at a time.
    """
    for item in holder.held():
        holder.drop(item.name)
        log(f"event=cold_start dropped={item.name} size_bytes={item.size_bytes}")
