"""``kvd hold``: keep the daemon's memory in a process of its own."""

import os
import signal
import socket
from pathlib import Path

import click

from kvd.config import load_settings, process_environment, service_manager, settings_file
from kvd.hold.endpoint import open_endpoint
from kvd.hold.server import HolderServer
from kvd.hold.systemd import notify_ready


@click.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Settings file; flags and KVD_* in the environment come before it.",
)
@click.option(
    "--socket",
    "socket_path",
    metavar="PATH",
    help="Where to listen. [default: hold.sock in the runtime directory]",
)
def hold(config_file: Path | None, socket_path: str | None) -> None:
    """Keep the daemon's memory in a process of its own.

    Takes the memory of one daemon at a time in as file descriptors. It has to run as the daemon's
    user, and what it keeps goes with it. In this version a daemon starts cold: it drops what an
    earlier one left here, because there is no journal yet that says what it means.
    """
    environ = process_environment()
    settings = load_settings(
        {"hold_path": socket_path}, environ, settings_file(config_file, environ)
    )
    path = settings.serve.hold_path
    stop = _stop_signals()
    endpoint = open_endpoint(path, what="holder")
    try:
        server = HolderServer(endpoint.listener)
        click.echo(f"kvd hold: ready socket={path} pid={os.getpid()}")
        manager = service_manager(environ, pid=os.getpid())
        if manager.notify_address is not None:
            notify_ready(manager.notify_address)
        kept_count = server.run(stop)
        server.close()
    finally:
        endpoint.close()
    if kept_count:
        click.echo(f"kvd hold: what it kept is gone with it: {kept_count} descriptors", err=True)


def _stop_signals() -> socket.socket:
    """Return a socket that becomes readable at SIGTERM or SIGINT."""
    readable, writable = socket.socketpair()
    writable.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    # The socket has to stay open as long as signals may come: until the process ends.
    signal.set_wakeup_fd(writable.detach())
    return readable
