"""ListConfigResources: the resources that can have settings (KIP-1142).

Versions 0 and 1:

* v0: client metrics only
* v1: all types
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from riverrun.metadata.image import ConfigType, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.list_config_resources_request import ListConfigResourcesRequest
from riverrun.wire.messages.list_config_resources_response import (
    ConfigResource,
    ListConfigResourcesResponse,
)


def handle(
    services: NodeServices, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    image = services.metadata.current
    return ListConfigResourcesResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        config_resources=tuple(
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in _kinds(context.api_version, request.resource_types)
            for name in _resources(image, kind)
        ),
    )


_LISTED: Final[list[ConfigType]] = [kind for kind in ConfigType if kind is not ConfigType.PLAN]


def _kinds(version: int, wanted: Iterable[int]) -> list[ConfigType]:
    if version == 0:
        return [ConfigType.CLIENT_METRICS]
    try:
        kinds = [ConfigType(one) for one in dict.fromkeys(wanted)] or _LISTED
    except ValueError:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION) from None
    if ConfigType.PLAN in kinds:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    return kinds


def _resources(image: Image, kind: ConfigType) -> list[str]:
    match kind:
        case ConfigType.TOPIC:
            return [str(name) for name in image.topics_by_name]
        case ConfigType.BROKER | ConfigType.BROKER_LOGGER:
            return [str(node) for node in image.brokers]
        case ConfigType.GROUP | ConfigType.CLIENT_METRICS | ConfigType.PLAN:
            return [name for of, name in image.configs if of is kind]
