"""Applies settings of listeners that change while the node runs: limits and certificates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image
from riverrun.server.network.listener import Listener

if TYPE_CHECKING:
    from riverrun.server.services import NodeServices


def listener_updates(services: NodeServices, listener: Listener) -> Callable[[Delta, Image], None]:
    """A subscriber of metadata images."""
    settings = services.settings

    def published(delta: Delta, image: Image) -> None:
        if any(kind is ConfigType.BROKER for kind, _ in delta.changed_configs):
            own = image.config(ConfigType.BROKER, str(settings.node_id))
            effective = services.configs.effective(image, settings.network)
            listener.configure(effective, {**settings.given, **own})
            services.security.configure(own)

    return published
