"""Access control of a node: whether a request's principal may do what it asks for.

Rights on the cluster and on one group or transactional id are checked here, before the handler
runs, by the table ``REQUIRED``. Rights on topics and on lists of resources are checked by the
handlers, which answer for each item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from riverrun.cluster.security.access_rules import acls_of
from riverrun.metadata.entries import ACCESS_CONTROL_ENTRY
from riverrun.metadata.image import ConfigType, Entries, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    AclOperation,
    Authorizer,
    ResourceType,
    is_reserved,
    operation_bits,
)
from riverrun.security.principal import NODE_KIND
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.settings import AuthorizationSettings
from riverrun.wire.apis import ApiKey

FAILURES: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error code of a missing right."""

MESSAGES: Final = {
    ResourceType.TOPIC: "Topic authorization failed.",
    ResourceType.GROUP: "Group authorization failed.",
    ResourceType.CLUSTER: "Cluster authorization failed.",
    ResourceType.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
    ResourceType.DELEGATION_TOKEN: "Delegation Token authorization failed.",
    ResourceType.USER: "Delegation Token authorization failed.",
}
"""Kafka's texts. Its tools print an empty text as it is, and not the name of the code."""


class RequiredRight(NamedTuple):
    """The right that a request needs as a whole. ``field`` names the resource in the request."""

    operation: AclOperation
    kind: ResourceType = ResourceType.CLUSTER
    field: str = ""


_ACTION: Final = RequiredRight(AclOperation.CLUSTER_ACTION)
_ALTER: Final = RequiredRight(AclOperation.ALTER)
_DESCRIBE: Final = RequiredRight(AclOperation.DESCRIBE)
_WRITE_ID: Final = RequiredRight(
    AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id"
)
_READ_GROUP: Final = RequiredRight(AclOperation.READ, ResourceType.GROUP, "group_id")

REQUIRED: Final[Mapping[ApiKey, RequiredRight]] = {
    # Between nodes
    ApiKey.VOTE: _ACTION,
    ApiKey.BEGIN_QUORUM_EPOCH: _ACTION,
    ApiKey.END_QUORUM_EPOCH: _ACTION,
    ApiKey.ALTER_PARTITION: _ACTION,
    ApiKey.ENVELOPE: _ACTION,
    ApiKey.FETCH_SNAPSHOT: _ACTION,
    ApiKey.BROKER_REGISTRATION: _ACTION,
    ApiKey.BROKER_HEARTBEAT: _ACTION,
    ApiKey.ALLOCATE_PRODUCER_IDS: _ACTION,
    ApiKey.CONTROLLER_REGISTRATION: _ACTION,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _ACTION,
    ApiKey.UPDATE_RAFT_VOTER: _ACTION,
    ApiKey.VERIFY_REPLICA: _ACTION,
    ApiKey.FORM_CLUSTER: _ACTION,
    ApiKey.DISCOVER_NODE: _DESCRIBE,
    ApiKey.APPEND_AUDIT: _ACTION,
    # Administration
    ApiKey.CREATE_ACLS: _ALTER,
    ApiKey.DELETE_ACLS: _ALTER,
    ApiKey.DESCRIBE_ACLS: _DESCRIBE,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _ALTER,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBE,
    ApiKey.ALTER_CLIENT_QUOTAS: RequiredRight(AclOperation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: RequiredRight(AclOperation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_QUOTA_USE: RequiredRight(AclOperation.DESCRIBE_CONFIGS),
    ApiKey.ELECT_LEADERS: _ALTER,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ALTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE,
    ApiKey.UPDATE_FEATURES: _ALTER,
    ApiKey.UNREGISTER_BROKER: _ALTER,
    ApiKey.ADD_RAFT_VOTER: _ALTER,
    ApiKey.REMOVE_RAFT_VOTER: _ALTER,
    ApiKey.DESCRIBE_QUORUM: _DESCRIBE,
    ApiKey.LIST_CONFIG_RESOURCES: RequiredRight(AclOperation.DESCRIBE_CONFIGS),
    # Groups
    ApiKey.JOIN_GROUP: _READ_GROUP,
    ApiKey.SYNC_GROUP: _READ_GROUP,
    ApiKey.HEARTBEAT: _READ_GROUP,
    ApiKey.LEAVE_GROUP: _READ_GROUP,
    ApiKey.OFFSET_COMMIT: _READ_GROUP,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _READ_GROUP,
    ApiKey.OFFSET_DELETE: RequiredRight(AclOperation.DELETE, ResourceType.GROUP, "group_id"),
    # Transactions
    ApiKey.ADD_OFFSETS_TO_TXN: _WRITE_ID,
    ApiKey.END_TXN: _WRITE_ID,
}
"""APIs that need one right as a whole. Handlers check all others."""


class DenialRecorder(Protocol):
    """Gets every denial; see ``server/security/audit``."""

    def denied(
        self, context: RequestContext, operation: AclOperation, kind: ResourceType, name: str
    ) -> None: ...


class AccessControl:
    """Everything is allowed while ``authorizer.class.name`` is empty, except what is reserved for
    the brokers.

    ``permits`` decides about a request, and records a denial. ``allows`` only asks, for lists that
    leave out what a principal may not see.
    """

    def __init__(
        self,
        settings: AuthorizationSettings,
        image: Callable[[], Image],
        audit: DenialRecorder | None = None,
    ) -> None:
        self.is_enabled = bool(settings.authorizer)
        self._super_users = tuple(
            text.strip() for text in settings.super_users.split(";") if text.strip()
        )
        self._is_open = settings.is_open
        self._image = image
        self._audit = audit
        self._acls: Entries | None = None
        self._current = Authorizer(())

    @property
    def authorizer(self) -> Authorizer:
        """Decides by the newest published rules. Images share unchanged rules, so other changes of
        the metadata keep the decisions that the authorizer remembers."""
        image = self._image()
        acls = image.entries_of(ACCESS_CONTROL_ENTRY)
        if acls is not self._acls:
            self._acls = acls
            self._current = Authorizer(
                acls_of(image), super_users=self._super_users, is_open=self._is_open
            )
        return self._current

    def allows(
        self, context: RequestContext, operation: AclOperation, kind: ResourceType, name: str
    ) -> bool:
        if not self.is_enabled:
            return not is_reserved(operation, kind, name) or context.principal.kind == NODE_KIND
        principal = context.principal
        if principal.kind == NODE_KIND:
            return True
        return self.authorizer.allows(principal, context.client_host, operation, kind, name)

    def permits(
        self, context: RequestContext, operation: AclOperation, kind: ResourceType, name: str
    ) -> bool:
        """The same, for a request that fails without the right."""
        if self.allows(context, operation, kind, name):
            return True
        if self._audit is not None:
            self._audit.denied(context, operation, kind, name)
        return False

    def permits_topic(self, context: RequestContext, operation: AclOperation, name: str) -> bool:
        """Whether the principal has a right on the cluster or on the topic."""
        has_all = self.allows_cluster(context, operation)
        if has_all and not is_reserved(operation, ResourceType.TOPIC, name):
            return True
        return self.permits(context, operation, ResourceType.TOPIC, name)

    def permits_cluster(self, context: RequestContext, operation: AclOperation) -> bool:
        return self.permits(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_cluster(self, context: RequestContext, operation: AclOperation) -> bool:
        return self.allows(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_any(
        self, context: RequestContext, operation: AclOperation, kind: ResourceType
    ) -> bool:
        """Whether the principal has a right on at least one resource of a type."""
        if not self.is_enabled:
            return True
        principal = context.principal
        if principal.kind == NODE_KIND:
            return True
        return self.authorizer.allows_any(principal, context.client_host, operation, kind)

    def require(
        self, context: RequestContext, operation: AclOperation, kind: ResourceType, name: str
    ) -> None:
        """Raises ``KafkaError`` if the right is missing."""
        if not self.permits(context, operation, kind, name):
            raise KafkaError(FAILURES[kind], MESSAGES[kind])

    def require_cluster(self, context: RequestContext, operation: AclOperation) -> None:
        self.require(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def check(self, key: ApiKey, context: RequestContext, request: Any) -> None:
        """Check the right of a request as a whole. Raises ``KafkaError``."""
        required = REQUIRED.get(key)
        if required is None or not self.is_enabled:
            return
        name = getattr(request, required.field) if required.field else CLUSTER_NAME
        self.require(context, required.operation, required.kind, name)

    def cluster_operations(self, context: RequestContext) -> int:
        """The same for the cluster; 0 for a principal that may not describe it."""
        if not self.allows_cluster(context, AclOperation.DESCRIBE):
            return 0
        return self.operations(context, ResourceType.CLUSTER, CLUSTER_NAME)

    def operations(self, context: RequestContext, kind: ResourceType, name: str) -> int:
        """The bits of the operations that the principal may do on a resource (KIP-430)."""
        return operation_bits(
            operation
            for operation in OPERATIONS_OF[kind]
            if self.allows(context, operation, kind, name)
        )


class ConfigResource(Protocol):
    """A resource in a request about settings."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


CR = TypeVar("CR", bound=ConfigResource)
_CONFIG_KINDS: Final[Mapping[int, ResourceType]] = {
    ConfigType.TOPIC: ResourceType.TOPIC,
    ConfigType.GROUP: ResourceType.GROUP,
}
"""Settings of all other resources are settings of the cluster."""


def require_config_right(
    access: AccessControl,
    context: RequestContext,
    operation: AclOperation,
    resource: ConfigResource,
) -> None:
    """Raises ``KafkaError`` if the principal may not see or change the settings of a resource."""
    kind = _CONFIG_KINDS.get(resource.resource_type)
    if kind is None:
        access.require_cluster(context, operation)
    else:
        access.require(context, operation, kind, resource.resource_name)


def divided_by_config_right(
    access: AccessControl,
    context: RequestContext,
    operation: AclOperation,
    resources: Sequence[CR],
) -> tuple[list[CR], list[tuple[CR, KafkaError]]]:
    """The resources whose settings may be changed, and the others with their error."""
    allowed: list[CR] = []
    refused: list[tuple[CR, KafkaError]] = []
    for one in resources:
        try:
            require_config_right(access, context, operation, one)
            allowed.append(one)
        except KafkaError as error:
            refused.append((one, error))
    return allowed, refused


def check_enabled(access: AccessControl) -> None:
    """ACLs without an authorizer would promise a protection that does not exist."""
    if not access.is_enabled:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
