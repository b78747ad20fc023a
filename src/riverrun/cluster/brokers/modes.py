"""The mode of a broker: an operator's wish that it leads nothing, or that it is emptied.

| mode | may lead | gets new replicas |
|---|---|---|
| active | yes | yes |
| maintenance | only if no other in-sync replica can | yes |
| decommissioning | only if no other in-sync replica can | no |

The mode is the dynamic setting ``broker.mode`` of one broker. It is part of the metadata, so it
survives restarts of the broker and changes of the controller. It also survives when the controller
unregisters a decommissioned broker by itself: the broker may come back, and is still decommissioned
then. The mode ends when a person resets it or unregisters the broker.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.ids import NodeId

BROKER_MODE: Final = "broker.mode"


class BrokerMode(StrEnum):
    ACTIVE = "active"
    MAINTENANCE = "maintenance"
    DECOMMISSIONING = "decommissioning"


_MODES: Final = {mode.value: mode for mode in BrokerMode}


def mode_of(image: Image, node: NodeId) -> BrokerMode:
    text = image.config(ConfigType.BROKER, str(node)).get(BROKER_MODE, "")
    return _MODES.get(text, BrokerMode.ACTIVE)


def is_emptied(image: Image, node: NodeId) -> bool:
    """Whether the broker must get no new replicas."""
    return mode_of(image, node) is BrokerMode.DECOMMISSIONING


def mode_texts(image: Image) -> dict[str, str]:
    """The modes of the registered brokers that are not active, by their ids."""
    return {str(node): mode_of(image, node).value for node in resting(image)}


def mode_reset(image: Image, node: NodeId) -> list[ConfigRecord]:
    """Return a broker to the active mode."""
    if mode_of(image, node) is BrokerMode.ACTIVE:
        return []
    return [
        ConfigRecord(
            resource_type=ConfigType.BROKER, resource_name=str(node), name=BROKER_MODE, value=None
        )
    ]


def resting(image: Image) -> tuple[NodeId, ...]:
    """The registered brokers that should lead nothing."""
    return tuple([node for node in image.brokers if mode_of(image, node) is not BrokerMode.ACTIVE])
