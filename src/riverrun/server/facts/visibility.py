"""Which metadata a principal may see in the timeline.

DescribeNode needs the right to describe the cluster. That includes nodes, the quorum, features,
rules and users. Everything else needs the right that Kafka's own requests need for it: Describe on
the topic or group, DescribeConfigs for quotas and for the values of settings, and for tokens the
rights of DescribeDelegationToken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverrun.metadata.image import ConfigType
from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
from riverrun.model.settings import SettingKind
from riverrun.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from riverrun.server.dispatch.context import RequestContext
    from riverrun.server.services import NodeServices

_LISTING: Final = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
"""Either of them shows that a resource has settings."""


class MetadataVisibility:
    """The rights of one request. Each right is looked up once."""

    def __init__(self, services: NodeServices, context: RequestContext) -> None:
        self._access = services.access
        self._configs = services.configs
        self._context = context
        self._known: dict[tuple[AclOperation, ResourceType, str], bool] = {}

    def sees_topic(self, name: str) -> bool:
        return self._allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    def sees_quotas(self) -> bool:
        return self._allows(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)

    def sees_settings_of(self, kind: int, name: str) -> bool:
        """Whether the settings of a resource are listed, perhaps without their values."""
        resource, found = _resource(kind, name)
        return resource is ResourceType.CLUSTER or any(
            self._allows(operation, resource, found) for operation in _LISTING
        )

    def sees_value(self, kind: int, name: str, setting: str) -> bool:
        """Whether the value of a setting of a resource is shown. Passwords never are."""
        if not self._allows(AclOperation.DESCRIBE_CONFIGS, *_resource(kind, name)):
            return False
        if kind == ConfigType.GROUP:
            return True
        known = (
            self._configs.topic.get(setting)
            if kind == ConfigType.TOPIC
            else self._configs.declaration(setting)
        )
        return known is not None and known.kind is not SettingKind.PASSWORD

    def sees_token(self, token: DelegationTokenRecord) -> bool:
        own = str(self._context.principal)
        return (
            own in (token.owner, token.requester, *token.renewers)
            or self.sees_token_id(token.token_id)
            or self._allows(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
        )

    def sees_token_id(self, token_id: str) -> bool:
        return self._allows(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id)

    def _allows(self, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        key = operation, kind, name
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._access.allows(self._context, operation, kind, name)
        return found


def _resource(kind: int, name: str) -> tuple[ResourceType, str]:
    """The resource whose rights decide about settings, as in DescribeConfigs."""
    match kind:
        case ConfigType.TOPIC:
            return ResourceType.TOPIC, name
        case ConfigType.GROUP:
            return ResourceType.GROUP, name
    return ResourceType.CLUSTER, CLUSTER_NAME
