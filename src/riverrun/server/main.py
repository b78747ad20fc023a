"""The program of one node: reads settings, then runs a node until it is stopped.

``riverrun start`` and ``python -m riverrun.server`` both call ``run``. ``riverrun up`` starts its
nodes with the latter, which takes the pipes of ``Supervision``.

SIGTERM, SIGINT and the end of the parent process stop the node in these steps:

1. ``Node.request_stop`` sets an event; ``Node.run`` wakes up and calls ``Node.stop``.
2. Controlled shutdown: the controller moves the leadership of our partitions to other brokers.
   A controller that leads the quorum resigns. Clients are still served.
3. The listener stops accepting, completes the requests in flight and closes its connections.
4. Group coordinators, follower fetchers and background tasks stop.
5. The metadata log and the partition logs are flushed and closed, and the clean-shutdown file is
   written. The next start then needs no recovery.
6. The process exits with ``STOPPED``, or with ``FAILED`` if a failure stopped the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
import uvloop
from msgspec import Struct, field

from riverrun.metadata.quorum import MetadataError
from riverrun.model.errors import KafkaError
from riverrun.model.names import LOCK
from riverrun.model.settings import SettingError
from riverrun.ports.clock import SystemClock
from riverrun.ports.files import Files, OsFiles, lock_owner
from riverrun.ports.randomness import SystemRandomness
from riverrun.server import logs
from riverrun.server.controller_link.lifecycle import RegistrationRefused
from riverrun.server.formation.decision import FormationError, FormationStopped
from riverrun.server.garbage import FrozenObjects, collect_less_often, without_collections
from riverrun.server.metrics.node_metrics import declare_build
from riverrun.server.network.free_ports import check_free
from riverrun.server.node import Node
from riverrun.server.service_manager import ServiceManager
from riverrun.server.settings import (
    Address,
    NodeSettings,
    settings_texts,
    unknown_variables,
)
from riverrun.server.socket_activation import adopt_sockets, passed_descriptors
from riverrun.server.tracing import with_environment
from riverrun.server.watchdog import Watchdog
from riverrun.storage.identity import DirectoryError

STOPPED: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
OPEN_FILES_WANTED: Final = 65_536
PREFIXED: Final = "prefixed"
PORT_IN_USE: Final = (
    "stop the process that uses the port, or choose another port (--advertised-addr, "
    "or `listeners` and `http.listener`); if no process uses it, a closed connection may hold it "
    "for a minute"
)

log = structlog.get_logger("riverrun")


class Supervision(Struct, frozen=True, kw_only=True):
    """Pipes to the parent process. The node writes "ready" to the first when it is up. It stops
    when the second reaches its end, because the parent has then ended.
    """

    ready_descriptor: int | None = None
    parent_descriptor: int | None = None
    is_prefixed: bool = False
    """The parent prints the node's name before each line of its log."""


class NodeHost(Struct, frozen=True, kw_only=True):
    """The files and the event loop of a node. ``riverrun.testing`` runs nodes with faulty ones."""

    files: Files = field(default_factory=OsFiles)
    new_loop: Callable[[], uvloop.Loop] = uvloop.new_event_loop


def run(
    texts: Mapping[str, str], supervision: Supervision | None = None, host: NodeHost | None = None
) -> int:
    """Run a node and return the exit code. Invalid settings are reported on standard error."""
    if not __debug__:
        print("riverrun: python must not run with -O: assertions guard the data", file=sys.stderr)  # noqa: T201
        return REFUSED
    try:
        settings = NodeSettings.from_texts(texts)
    except SettingError as error:
        print(f"riverrun: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED
    _raise_open_files_limit()
    supervision = supervision or Supervision()
    logs.configure(
        format_=settings.identity.log_format,
        level=settings.identity.log_level,
        prefixed_node=int(settings.node_id) if supervision.is_prefixed else None,
    )
    host = host or NodeHost()
    collect_less_often()
    return uvloop.run(_serve(settings, supervision, host.files), loop_factory=host.new_loop)


def _boot_id() -> str:
    """The kernel's id of the current boot; empty on systems without one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _raise_open_files_limit() -> None:
    """Ten thousand partitions have more files than the usual soft limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _report_ignored(settings: NodeSettings) -> None:
    if ignored := unknown_variables(os.environ):
        log.warning("ignored unknown environment variables", names=", ".join(ignored))
    if settings.ignored:
        log.warning(
            "ignored settings of Apache Kafka that have no meaning here",
            names=", ".join(settings.ignored),
        )


async def _serve(settings: NodeSettings, supervision: Supervision, files: Files) -> int:
    structlog.contextvars.bind_contextvars(node=int(settings.node_id))
    _report_ignored(settings)
    sockets = adopt_sockets(
        passed_descriptors(os.environ, os.getpid()), settings.client_addresses()
    )
    node = Node(
        with_environment(settings, os.environ),
        files=files,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        boot_id=_boot_id(),
        sockets=sockets,
        loading=without_collections,
    )
    declare_build(node.metrics)
    asyncio.get_running_loop().set_exception_handler(node.callback_failed)
    manager = ServiceManager(os.environ, os.getpid())

    def stop(reason: str) -> None:
        manager.stopping()
        node.request_stop(reason)

    _stop_on_request(stop, supervision.parent_descriptor)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, node.reload_certificates)
    manager.starting()
    frozen = FrozenObjects(node.count_logs)
    frozen.start()
    exit_code = _check_addresses(settings, list(sockets)) or await _start(node)
    if exit_code is not None:
        frozen.stop()
        manager.close()
        await node.stop()
        return exit_code
    frozen.freeze()
    if node.is_serving:
        manager.ready()
    if supervision.ready_descriptor is not None and node.is_serving:
        os.write(supervision.ready_descriptor, b"ready\n")
        os.close(supervision.ready_descriptor)
    watchdog = Watchdog(SystemClock(), node.metrics)
    watchdog.start()
    failure = await node.run()
    watchdog.stop()
    frozen.stop()
    manager.close()
    return FAILED if failure else STOPPED


async def _start(node: Node) -> int | None:
    """Start the node. Returns the exit code if it cannot start."""
    try:
        await node.start()
    except FormationStopped:
        return STOPPED
    except (FormationError, RegistrationRefused) as error:
        log.error("cannot join a cluster", error=str(error))
        return REFUSED
    except SettingError as error:
        log.error("invalid setting", error=str(error))
        return REFUSED
    except (DirectoryError, MetadataError) as error:
        log.error("cannot use the data directory", error=str(error))
        return REFUSED
    except (OSError, KafkaError) as error:
        return _cannot_start(error)
    return None


def _check_addresses(settings: NodeSettings, passed: Sequence[Address]) -> int | None:
    """Report an address in use. Returns the exit code, or None if all addresses are free.

    If another process uses the data directory, the addresses are most likely its own. The start
    then reports the directory.
    """
    try:
        if lock_owner(os.path.join(settings.data_directory, LOCK)) is not None:
            return None
    except PermissionError:
        return None
    addresses = [a for a in (settings.controller_address(),) if a is not None]
    if settings.formation.is_broker:
        addresses += [a for a in settings.client_addresses() if a not in passed]
    ports = [(a.host, a.port) for a in addresses]
    http_host, _, http_port = settings.identity.http_listener.rpartition(":")
    if http_port.isdigit():
        ports.append((http_host, int(http_port)))
    try:
        check_free(ports)
    except OSError as error:
        return _cannot_start(error)
    return None


def _cannot_start(error: OSError | KafkaError) -> int:
    hint = {}
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        hint["remedy"] = PORT_IN_USE
    log.error("cannot start", error=str(error), **hint)
    return FAILED


def _stop_on_request(stop: Callable[[str], None], parent_descriptor: int | None) -> None:
    """Call ``stop`` on SIGTERM and SIGINT, and when the parent's end of the pipe closes."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, signal.Signals(number).name)

    def parent_ended(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        stop("the parent process ended")

    if parent_descriptor is not None:
        loop.add_reader(parent_descriptor, parent_ended, parent_descriptor)


def main(arguments: list[str], host: NodeHost | None = None) -> int:
    """``python -m riverrun.server CONFIG [READY_FD PARENT_FD [prefixed]]``."""
    config, *descriptors = arguments
    try:
        texts = settings_texts(Path(config), {}, os.environ)
    except SettingError as error:
        print(f"riverrun: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED
    if not descriptors:
        return run(texts, host=host)
    ready, parent, *rest = descriptors
    supervision = Supervision(
        ready_descriptor=int(ready),
        parent_descriptor=int(parent),
        is_prefixed=rest == [PREFIXED],
    )
    return run(texts, supervision, host)
