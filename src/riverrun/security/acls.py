"""Access control lists: their values, and the decision whether a principal may do something.

The rules are those of Kafka's StandardAuthorizer. A super user may do everything. Otherwise the
rules whose pattern matches the resource are looked up. Among those for the principal, its host and
the operation, a DENY wins over every ALLOW. Without any of them the request is denied, unless no
rule at all matches the resource and ``allow.everyone.if.no.acl.found`` is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final
from uuid import UUID

from msgspec import Struct

from riverrun.model.names import AUDIT_TOPIC
from riverrun.security.principal import Principal

WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
CACHED_DECISIONS_MAX: Final = 100_000
"""Then the cache is emptied: clients choose the names in it."""


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_RESERVED: Final = frozenset(
    {
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.ALTER_CONFIGS,
    }
)
IMPLIES: Final = {
    AclOperation.DESCRIBE: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
"""The operations whose ALLOW also allows the key. A DENY implies nothing."""

OPERATIONS_OF: Final = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        AclOperation.DESCRIBE,
        AclOperation.WRITE,
        AclOperation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations that exist on each type of resource."""


class Acl(Struct, frozen=True, kw_only=True):
    """One rule. ``principal`` is a text like ``User:alice``; ``User:*`` means every user."""

    id: UUID
    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def __str__(self) -> str:
        pattern = f"{self.name}*" if self.pattern_type is PatternType.PREFIXED else self.name
        return (
            f"{self.permission.name} {self.principal} from {self.host} "
            f"{self.operation.name} on {self.resource_type.name} {pattern}"
        )

    def applies_to(self, principal: str, host: str) -> bool:
        kind, _, _ = principal.partition(":")
        is_principal = self.principal in (principal, f"{kind}:{WILDCARD}")
        return is_principal and self.host in (host, WILDCARD)

    def denies(self, operation: AclOperation) -> bool:
        return self.permission is AclPermission.DENY and self.operation in (
            operation,
            AclOperation.ALL,
        )

    def allows(self, operation: AclOperation) -> bool:
        return self.permission is AclPermission.ALLOW and (
            self.operation in (operation, AclOperation.ALL)
            or self.operation in IMPLIES.get(operation, ())
        )


class AuthorizationResult(Struct, frozen=True, kw_only=True):
    is_allowed: bool
    reason: str
    """The rule that decided, or why there is none; for the audit log and `riverrun acls check`."""
    rule: Acl | None = None
    """The rule that decided, if one did."""


class AclIndex:
    """The rules of one image, by type, pattern and name."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._literal: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._prefixed: dict[tuple[ResourceType, str], list[Acl]] = {}
        lengths: dict[ResourceType, dict[int, None]] = {}
        for acl in acls:
            key = (acl.resource_type, acl.name)
            if acl.pattern_type is PatternType.PREFIXED:
                self._prefixed.setdefault(key, []).append(acl)
                lengths.setdefault(acl.resource_type, {})[len(acl.name)] = None
            else:
                self._literal.setdefault(key, []).append(acl)
        self._lengths = {kind: tuple(sorted(found)) for kind, found in lengths.items()}

    def matching(self, kind: ResourceType, name: str) -> Iterator[Acl]:
        """The rules whose pattern matches a resource, for all principals and operations."""
        yield from self._literal.get((kind, name), ())
        if name != WILDCARD:
            yield from self._literal.get((kind, WILDCARD), ())
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            yield from self._prefixed.get((kind, name[:length]), ())

    def of_type(self, kind: ResourceType) -> Iterator[Acl]:
        for index in (self._literal, self._prefixed):
            for (found, _), acls in index.items():
                if found is kind:
                    yield from acls


class Authorizer:
    """Decides by the rules of one image. Decisions are cached; a new image makes a new one."""

    def __init__(
        self,
        acls: Iterable[Acl],
        *,
        super_users: Sequence[str] = (),
        is_open: bool = False,
    ) -> None:
        """``is_open`` is ``allow.everyone.if.no.acl.found``."""
        self._index = AclIndex(acls)
        self._super_users = frozenset(super_users)
        self._is_open = is_open
        self._cache: dict[tuple[Principal, str, AclOperation, ResourceType, str], bool] = {}

    def is_super_user(self, principal: Principal) -> bool:
        return str(principal) in self._super_users

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        kind: ResourceType,
        name: str,
    ) -> bool:
        key = (principal, host, operation, kind, name)
        known = self._cache.get(key)
        if known is None:
            known = self.decide(principal, host, operation, kind, name).is_allowed
            if len(self._cache) >= CACHED_DECISIONS_MAX:
                self._cache.clear()
            self._cache[key] = known
        return known

    def decide(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        kind: ResourceType,
        name: str,
    ) -> AuthorizationResult:
        """The decision with its reason."""
        if is_reserved(operation, kind, name):
            return AuthorizationResult(is_allowed=False, reason=f"only brokers write {name}")
        if self.is_super_user(principal):
            return AuthorizationResult(is_allowed=True, reason=f"{principal} is a super user")
        who = str(principal)
        allowed: Acl | None = None
        is_known = False
        for acl in self._index.matching(kind, name):
            is_known = True
            if not acl.applies_to(who, host):
                continue
            if acl.denies(operation):
                return AuthorizationResult(is_allowed=False, reason=str(acl), rule=acl)
            if allowed is None and acl.allows(operation):
                allowed = acl
        if allowed is not None:
            return AuthorizationResult(is_allowed=True, reason=str(allowed), rule=allowed)
        resource = f"{kind.name.lower().replace('_', ' ')} {name}"
        if is_known:
            return AuthorizationResult(
                is_allowed=False,
                reason=f"no rule allows {operation.name} on {resource} to {principal}",
            )
        text = "allow.everyone.if.no.acl.found" if self._is_open else "the default"
        return AuthorizationResult(
            is_allowed=self._is_open, reason=f"no rule matches {kind.name} {name}: {text}"
        )

    def allows_any(
        self, principal: Principal, host: str, operation: AclOperation, kind: ResourceType
    ) -> bool:
        """Whether the principal may do this on at least one resource of a type (KIP-679).

        An ALLOW counts unless a DENY covers all names that it allows.
        """
        if self.is_super_user(principal):
            return True
        who = str(principal)
        mine = [acl for acl in self._index.of_type(kind) if acl.applies_to(who, host)]
        denials = [acl for acl in mine if acl.denies(operation)]
        if any(acl.pattern_type is PatternType.LITERAL and acl.name == WILDCARD for acl in denials):
            return False
        denied_names = {acl.name for acl in denials if acl.pattern_type is PatternType.LITERAL}
        denied_prefixes = [acl.name for acl in denials if acl.pattern_type is PatternType.PREFIXED]
        for acl in mine:
            if not acl.allows(operation):
                continue
            is_literal = acl.pattern_type is PatternType.LITERAL
            if is_literal and acl.name == WILDCARD:
                return True
            if any(acl.name.startswith(prefix) for prefix in denied_prefixes):
                continue
            if not is_literal or acl.name not in denied_names:
                return True
        return self._is_open


class AclFilter(Struct, frozen=True, kw_only=True):
    """A filter of DescribeAcls and DeleteAcls. None and ANY match everything."""

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: AclPermission

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        match self.pattern_type:
            case PatternType.ANY:
                return self.name in (None, acl.name)
            case PatternType.MATCH:
                return self.name is None or _affects(acl, self.name)
            case _:
                return self.pattern_type is acl.pattern_type and self.name in (None, acl.name)


def _affects(acl: Acl, name: str) -> bool:
    """Whether the rule applies to a resource of this name."""
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, WILDCARD)


def is_reserved(operation: AclOperation, kind: ResourceType, name: str) -> bool:
    """Whether only the brokers may do this, and no client with whatever rights."""
    return name == AUDIT_TOPIC and kind is ResourceType.TOPIC and operation in _RESERVED


def operation_bits(operations: Iterable[AclOperation]) -> int:
    """The authorized operations as a bit field (KIP-430)."""
    return sum(1 << operation for operation in operations)
