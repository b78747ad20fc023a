"""The program of one node: settings in, a broker that runs until it is told to stop.

``riverrun start`` and ``python -m riverrun.server`` both end here; ``riverrun up`` uses the
latter, for it starts faster without the command line's library.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from riverrun.model.dataclasses import dataclass
from riverrun.model.settings import SettingError
from riverrun.model.synonyms import overridden
from riverrun.server.early import EarlySockets
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
    # Everything else is loaded after this: clients may come meanwhile.
    early = EarlySockets.open(settings)
    _raise_file_limit()
    import riverrun.server.plain_structlog  # noqa: F401  # before whoever imports structlog
    from riverrun.server import logs

    logs.configure(format_=settings.identity.log_format, level=settings.identity.log_level)
    import uvloop

    return uvloop.run(_serve(settings, early, supervision or Supervision()))


def settings_texts(config: Path | None, flags: Mapping[str, str]) -> dict[str, str]:
    """File, environment and flags, the later ones winning."""
    texts = read_file(config) if config is not None else {}
    texts = overridden(overridden(texts, from_environment(os.environ)), flags)
    if "log.dirs" not in texts and "node.id" in texts:
        texts["log.dirs"] = f"data/node-{texts['node.id']}"
    return texts


def _boot_id() -> str:
    """The kernel's own name for its life since the last boot; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _raise_file_limit() -> None:
    """Ten thousand partitions have more files than the usual soft limit allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft < wanted:
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: NodeSettings, early: EarlySockets, supervision: Supervision) -> int:
    import structlog

    from riverrun.metadata.quorum import MetadataError
    from riverrun.model.errors import KafkaError
    from riverrun.ports.clock import SystemClock
    from riverrun.ports.files import OsFiles
    from riverrun.ports.randomness import SystemRandomness
    from riverrun.server.controller_link.lifecycle import RegistrationRefused
    from riverrun.server.formation.formed import FormationError, FormationStopped
    from riverrun.server.node import Broker
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
        early=early,
    )
    _stop_when_told(broker.request_stop, supervision.parent_descriptor)
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


def _stop_when_told(stop: Callable[[str], None], parent_descriptor: int | None) -> None:
    """By signals, or by the end of the process that started us: then the other end of its pipe
    is closed.
    """
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, signal.Signals(number).name)

    def ended(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        stop("the parent process ended")

    if parent_descriptor is not None:
        loop.add_reader(parent_descriptor, ended, parent_descriptor)


def main(arguments: list[str]) -> int:
    """``python -m riverrun.server CONFIG [READY_FD PARENT_FD]``: how ``riverrun up`` starts a node,
    and ``riverrun start`` where a file says all.
    """
    config, *descriptors = arguments
    try:
        texts = settings_texts(Path(config), {})
    except SettingError as error:
        print(f"riverrun: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED
    ready, parent = (int(text) for text in descriptors) if descriptors else (None, None)
    return run(texts, Supervision(ready_descriptor=ready, parent_descriptor=parent))
