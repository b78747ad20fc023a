"""The program of one node: settings in, a broker that runs until it is told to stop.

``riverrun start`` and ``python -m riverrun.server`` both end here; ``riverrun up`` uses the
latter, for it starts faster without the command line's library.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import riverrun.server.plain_structlog  # noqa: F401  # before whoever imports structlog
from riverrun.model.dataclasses import dataclass
from riverrun.model.errors import KafkaError
from riverrun.model.settings import SettingError
from riverrun.model.synonyms import overridden
from riverrun.server import logs
from riverrun.server.settings import (
    NodeSettings,
    from_environment,
    read_file,
    unknown_variables,
)

STOPPED = 0
FAILED = 1
REFUSED = 2
FILES_WANTED = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """Pipes to the process that started us: where to say "ready", and whose end means to stop."""

    ready_descriptor: int | None = None
    parent_descriptor: int | None = None


def run(texts: Mapping[str, str], supervision: Supervision | None = None) -> int:
    """Run a node; gives the exit code. Bad settings and unusable data are said in words."""
    if not __debug__:
        print("riverrun: python must not run with -O: assertions guard the data", file=sys.stderr)  # noqa: T201
        return REFUSED
    try:
        settings = NodeSettings.from_texts(texts)
    except SettingError as error:
        print(f"riverrun: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED
    # What is made until the node serves stays for ever: there is nothing to collect.
    gc.disable()
    logs.configure(format_=settings.identity.log_format, level=settings.identity.log_level)
    _raise_file_limit()
    import uvloop

    return uvloop.run(_serve(settings, supervision or Supervision()))


def settings_texts(config: Path | None, flags: Mapping[str, str]) -> dict[str, str]:
    """File, environment and flags, the later ones winning."""
    texts = read_file(config) if config is not None else {}
    return overridden(overridden(texts, from_environment(os.environ)), flags)


def _boot_id() -> str:
    """The kernel's own name for its life since the last boot; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _raise_file_limit() -> None:
    """Ten thousand partitions have more files than the usual soft limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft < wanted:
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: NodeSettings, supervision: Supervision) -> int:
    import structlog

    from riverrun.metadata.quorum import MetadataError
    from riverrun.ports.clock import SystemClock
    from riverrun.ports.files import OsFiles
    from riverrun.ports.randomness import SystemRandomness
    from riverrun.server.broker import Broker
    from riverrun.server.formation.formed import FormationError, FormationStopped
    from riverrun.server.lifecycle import RegistrationRefused
    from riverrun.server.watchdog import Watchdog
    from riverrun.storage.directory import DirectoryError

    log = structlog.get_logger("riverrun")
    structlog.contextvars.bind_contextvars(node=int(settings.node_id))
    if ignored := unknown_variables(os.environ):
        log.warning("variables without meaning are ignored", names=", ".join(ignored))
    broker = Broker(
        settings,
        files=OsFiles(),
        clock=SystemClock(),
        randomness=SystemRandomness(),
        boot_id=_boot_id(),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, broker.request_stop, signal.Signals(number).name)
    if supervision.parent_descriptor is not None:
        _stop_with_parent(loop, supervision.parent_descriptor, broker.request_stop)
    try:
        is_serving = await broker.start()
    except FormationStopped:
        await broker.stop()
        return STOPPED
    except (FormationError, RegistrationRefused) as error:
        log.error("cannot join a cluster", reason=str(error))
        await broker.stop()
        return REFUSED
    except (DirectoryError, MetadataError) as error:
        log.error("cannot use the data directory", reason=str(error))
        await broker.stop()
        return REFUSED
    except (OSError, KafkaError) as error:
        hint = {}
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            hint["remedy"] = "stop what listens there, or choose another port (up: --port)"
        log.error("cannot start", reason=str(error), **hint)
        await broker.stop()
        return FAILED
    gc.freeze()
    gc.enable()
    if supervision.ready_descriptor is not None and is_serving:
        os.write(supervision.ready_descriptor, b"ready\n")
        os.close(supervision.ready_descriptor)
    watchdog = Watchdog(SystemClock(), broker.metrics)
    watchdog.start()
    failure = await broker.run()
    watchdog.stop()
    return FAILED if failure else STOPPED


def _stop_with_parent(
    loop: asyncio.AbstractEventLoop, descriptor: int, stop: Callable[[str], None]
) -> None:
    """When the process that started us is gone, its end of the pipe closes: stop as well."""

    def ended() -> None:
        loop.remove_reader(descriptor)
        stop("the parent process ended")

    loop.add_reader(descriptor, ended)


def main(arguments: list[str]) -> int:
    """``python -m riverrun.server CONFIG READY_FD PARENT_FD``: how ``riverrun up`` starts a
    node.
    """
    config, ready, parent = arguments
    try:
        texts = settings_texts(Path(config), {})
    except SettingError as error:
        print(f"riverrun: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED
    supervision = Supervision(ready_descriptor=int(ready), parent_descriptor=int(parent))
    return run(texts, supervision)
