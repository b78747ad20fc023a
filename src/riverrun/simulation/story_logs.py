"""Sends the nodes' own logs into the story, instead of to a terminal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import structlog
from structlog.typing import EventDict, WrappedLogger

from riverrun.simulation.failures import NodeFailure

if TYPE_CHECKING:
    from riverrun.simulation.world import World


@contextlib.contextmanager
def story_logs(world: World) -> Iterator[None]:
    """While it lasts, structlog tells the story and the clients' chatter is not shown."""

    def tell(_: WrappedLogger, level: str, event: EventDict) -> NoReturn:
        node = world.running.host.name if world.running is not None else "world"
        said = event.pop("event", "")
        fields = " ".join(f"{name}={value}" for name, value in sorted(event.items()))
        world.note(f"{node}: [{level}] {said} {fields}".rstrip())
        if "trace" in event or "exc_info" in event:
            # A node that survives its own bug (it costs a connection) has a bug all the same.
            world.fail(NodeFailure(f"{node}: {said} {event.get('reason', '')}"))
        raise structlog.DropEvent

    before, disabled = structlog.get_config(), logging.root.manager.disable
    structlog.configure(
        processors=[tell],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        structlog.configure(**before)
