"""Refuses changes of settings that name files or directories which this node cannot use.

That is ``cordoned.log.dirs``, and the certificates of listeners. The controller decides about all
other settings, but knows no paths. Clients send the settings of a broker to that broker, which
therefore checks them before it forwards the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from riverrun.cluster.configs.alter_configs import ConfigOperation
from riverrun.cluster.configs.node_configs import CLUSTER
from riverrun.metadata.image import ConfigType
from riverrun.model.errors import ErrorCode
from riverrun.model.settings import SettingError
from riverrun.security.acls import AclOperation
from riverrun.security.protocols import LISTENER_PREFIX
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.requests import alter_configs, incremental_alter_configs
from riverrun.server.security.access import divided_by_config_right
from riverrun.storage.settings import CORDONED, DirectorySettings
from riverrun.wire.apis import Api, ApiKey
from riverrun.wire.codec import decode_response

if TYPE_CHECKING:
    from riverrun.server.dispatch.router import Forward
    from riverrun.server.services import NodeServices

_FAILED: Final[Mapping[ApiKey, Callable[[Any, ErrorCode, str | None], Any]]] = {
    ApiKey.ALTER_CONFIGS: alter_configs.failed,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.failed,
}


class NodeConfigCheck:
    """``forward`` has the place of the forwarder's."""

    def __init__(self, services: NodeServices, forward: Forward) -> None:
        self._services = services
        self._forward = forward

    async def forward(self, api: Api, context: RequestContext, request: Any) -> Any:
        if api.key not in _FAILED:
            return await self._forward(api, context, request)
        allowed, _ = divided_by_config_right(
            self._services.access, context, AclOperation.ALTER_CONFIGS, request.resources
        )
        refused = [(one, why) for one in allowed if (why := self._refusal(one)) is not None]
        if not refused:
            return await self._forward(api, context, request)
        failed = _FAILED[api.key]
        rows: list[Any] = []
        for one, why in refused:
            part: Any = replace(request, resources=(one,))
            rows += failed(part, ErrorCode.INVALID_REQUEST, why).responses
        bad = [one for one, _ in refused]
        rest = tuple(one for one in request.resources if one not in bad)
        if not rest:
            return replace(failed(request, ErrorCode.NONE, None), responses=tuple(rows))
        answer = await self._forward(api, context, replace(request, resources=rest))
        if isinstance(answer, bytes):
            answer = decode_response(api.key, context.api_version, answer)
        return replace(answer, responses=(*answer.responses, *rows))

    def _refusal(self, resource: Any) -> str | None:
        """Why the settings of a resource cannot be set; None if they can."""
        node = str(self._services.settings.node_id)
        if resource.resource_type != ConfigType.BROKER or resource.resource_name not in (
            CLUSTER,
            node,
        ):
            return None
        try:
            self._check_cordons(resource)
            if resource.resource_name == node:
                self._check_certificates(resource)
        except SettingError as error:
            return str(error)
        return None

    def _check_cordons(self, resource: Any) -> None:
        directory = self._services.settings.data_directory
        for text in _cordons(resource.configs):
            given = DirectorySettings.from_texts({CORDONED: text})
            if unknown := given.unknown_cordons(directory):
                reason = f"{unknown[0]} is not the data directory {directory}, nor *"
                raise SettingError(CORDONED, text, reason)

    def _check_certificates(self, resource: Any) -> None:
        """Kafka answers INVALID_REQUEST too if a broker cannot use its new certificate."""
        changes = {one.name: _value_of(one) for one in resource.configs}
        if not any(name.startswith(LISTENER_PREFIX) for name in changes):
            return
        services = self._services
        texts: dict[str, str] = {}
        if hasattr(resource.configs[0], "config_operation"):  # others replace all settings
            image = services.metadata.current
            texts |= image.config(ConfigType.BROKER, resource.resource_name)
        for name, text in changes.items():
            texts.pop(name, None)
            if text is not None:
                texts[name] = text
        services.security.check(texts, changed=changes)


def _value_of(change: Any) -> str | None:
    operation = getattr(change, "config_operation", ConfigOperation.SET)
    text: str | None = change.value
    return text if operation == ConfigOperation.SET else None


def _cordons(changes: Sequence[Any]) -> list[str]:
    """The values that are set or added."""
    adding = (ConfigOperation.SET, ConfigOperation.APPEND)
    return [
        one.value
        for one in changes
        if one.name == CORDONED
        and one.value is not None
        and getattr(one, "config_operation", ConfigOperation.SET) in adding
    ]
