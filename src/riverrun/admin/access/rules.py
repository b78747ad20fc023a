"""Access rules in words: names of operations and resources, roles, and rules as rows.

The command line and the console read and print rules with it. Errors are ``ValueError`` with the
names that exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, TypeVar
from uuid import UUID

from riverrun.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

NO_ID: Final = UUID(int=0)
"""Requests do not show the ids of rules."""

Choice = TypeVar("Choice", bound=IntEnum)
Resource = tuple[ResourceType, str]
Right = tuple[ResourceType, str, AclOperation]

RESOURCE_TYPES: Final = tuple(one for one in ResourceType if one > ResourceType.ANY)
OPERATIONS: Final = tuple(one for one in AclOperation if one > AclOperation.ANY)
PATTERNS: Final = (PatternType.LITERAL, PatternType.PREFIXED)
PERMISSIONS: Final = (AclPermission.ALLOW, AclPermission.DENY)

ROLES: Final = {
    "producer": {
        ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
        ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
    },
    "consumer": {
        ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
        ResourceType.GROUP: (AclOperation.READ,),
    },
}


def title(choice: IntEnum) -> str:
    """``DescribeConfigs``, as Kafka's tools print it."""
    return "".join(word.capitalize() for word in choice.name.split("_"))


def parse_choice(text: str, choices: Sequence[Choice]) -> Choice:
    """A choice by name: ``DescribeConfigs``, ``describe-configs`` or ``DESCRIBE_CONFIGS``."""
    wanted = text.replace("_", "").replace("-", "").upper()
    for choice in choices:
        if choice.name.replace("_", "") == wanted:
            return choice
    raise ValueError(f"{text}: choose one of {', '.join(map(title, choices))}")


def principal_of(user: str) -> str:
    """``User:alice`` for ``alice``."""
    return user if ":" in user else f"User:{user}"


def rule_filter(
    kind: ResourceType = ResourceType.ANY,
    name: str | None = None,
    principal: str | None = None,
    pattern: PatternType = PatternType.ANY,
) -> AclFilter:
    """Rules for any host, operation and permission; without arguments all rules."""
    return AclFilter(
        resource_type=kind,
        name=name,
        pattern_type=pattern,
        principal=principal,
        host=None,
        operation=AclOperation.ANY,
        permission=AclPermission.ANY,
    )


def new_rule(
    right: Right,
    user: str,
    *,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: AclPermission = AclPermission.ALLOW,
) -> Acl:
    kind, name, operation = right
    return Acl(
        id=NO_ID,
        resource_type=kind,
        pattern_type=pattern,
        name=CLUSTER_NAME if kind is ResourceType.CLUSTER else name,
        principal=principal_of(user),
        host=host,
        operation=operation,
        permission=permission,
    )


def role_rights(role: str, resources: Iterable[Resource]) -> list[Right]:
    """The rights of a role on the given resources."""
    if role not in ROLES:
        raise ValueError(f"choose {' or '.join(ROLES)}")
    rights = ROLES[role]
    return [(kind, name, one) for kind, name in resources for one in rights.get(kind, ())]


def described_rule(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": title(acl.operation),
        "resource": title(acl.resource_type),
        "name": acl.name,
        "pattern": acl.pattern_type.name.lower(),
        "host": acl.host,
    }
