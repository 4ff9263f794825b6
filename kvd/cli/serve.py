"""``kvd serve``: run the daemon."""

import os
import sys
from pathlib import Path

import click

from kvd.cli.flags import load_from_flags, setting_options
from kvd.config import ServeSettings, ServiceManager, process_environment, service_manager
from kvd.errors import ServeError
from kvd.hold.client import connect
from kvd.hold.spawn import spawn_holder
from kvd.hold.store import DescriptorHolder
from kvd.hold.systemd import DescriptorStore, notify_ready, notify_stopping
from kvd.serve.daemon import Daemon


@click.command()
@setting_options("serve", "sizing")
def serve(config_file: Path | None, **flags: str | None) -> None:
    """Run the daemon until SIGTERM; a second signal stops it at once.

    Prints one line when it is ready, and one line per event on stderr. Sizing settings apply where
    the hello of a group says nothing else.
    """
    settings = load_from_flags(config_file, flags)
    manager = service_manager(process_environment(), pid=os.getpid())
    holder = _holder(settings.serve, manager)
    try:
        _start_cold(holder)
        daemon = Daemon(settings, keeper=holder, log=_log)

        def announce() -> None:
            # First, because it may fail: then the daemon ends and was never said to be ready.
            if manager.notify_address is not None:
                notify_ready(manager.notify_address)
            click.echo(f"kvd serve: ready socket={daemon.address} device=host pid={os.getpid()}")
            sys.stdout.flush()

        daemon.run(announce)
        if manager.notify_address is not None:
            notify_stopping(manager.notify_address)
    finally:
        holder.close()


def _holder(serve: ServeSettings, manager: ServiceManager) -> DescriptorHolder:
    """Return who keeps the memory while the daemon restarts; raises ServeError."""
    if serve.holder == "external":
        return connect(serve.hold_path)
    if serve.holder == "systemd":
        if manager.notify_address is None:
            raise ServeError(
                "holder = systemd needs a service manager that passes NOTIFY_SOCKET; start the "
                "daemon through its unit file, or choose holder = own or external"
            )
        return DescriptorStore(manager.notify_address, manager.descriptor_names)
    _log("event=own_holder note='memory and contents end with this daemon'")
    return spawn_holder()


def _start_cold(holder: DescriptorHolder) -> None:
    """Drop what an earlier daemon left: without a journal nobody can say what it means."""
    for item in holder.held():
        holder.drop(item.name)
        _log(f"event=cold_start dropped={item.name} size_bytes={item.size_bytes}")


def _log(line: str) -> None:
    click.echo(line, err=True)
