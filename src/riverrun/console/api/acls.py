"""Access rules: list, add and remove them, and explain a decision by its rule."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct, field

from riverrun.admin.access.rule_admin import (
    add_rules,
    check_right,
    find_rules,
    list_rules,
    remove_rules,
)
from riverrun.admin.access.rules import (
    OPERATIONS,
    PATTERNS,
    PERMISSIONS,
    RESOURCE_TYPES,
    Resource,
    new_rule,
    parse_choice,
    principal_of,
    rule_filter,
    title,
)
from riverrun.console.listing import ListQuery, ordered
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ClusterRequest
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

RULES_MAX: Final = 1_000

Choice = TypeVar("Choice", bound=IntEnum)
Text = Annotated[str, Meta(min_length=1, max_length=1024)]

RESOURCE_OPTIONS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
}
"""The option of a command that names a resource of each type. The cluster has no name."""


class AclRule(Struct, frozen=True, kw_only=True):
    """A rule, with Kafka's names: TOPIC, LITERAL, READ, ALLOW. A principal without a type is a
    user. The cluster's resource is ``kafka-cluster``."""

    principal: Text
    operation: str
    resource_type: str
    resource: Text = CLUSTER_NAME
    pattern: str = "LITERAL"
    permission: str = "ALLOW"
    host: Text = "*"


class AclsQuery(ListQuery, kw_only=True):
    """``resource`` lists the rules that affect a resource of this name, also those with a prefix
    or ``*``."""

    principal: str | None = None
    resource_type: str | None = None
    resource: str | None = None


class AclPage(Struct, frozen=True, kw_only=True):
    """One page of rules. ``authorizer`` is false if access control is off."""

    items: list[AclRule]
    total: int
    page: int
    limit: int
    authorizer: bool


class AclsBody(Struct, kw_only=True):
    """Rules to add or to remove."""

    rules: Annotated[list[AclRule], Meta(min_length=1, max_length=RULES_MAX)]
    dry_run: bool = False


class AclsResult(Struct, frozen=True, kw_only=True):
    """The rules that changed, or would change."""

    dry_run: bool
    command: str
    rules: list[AclRule]
    unknown: list[AclRule] = field(default_factory=list)
    """Rules to remove that do not exist."""


class AclCheckBody(Struct, kw_only=True):
    """A user, and what it wants to do."""

    user: Text
    operation: str
    resource_type: str
    resource: Text = CLUSTER_NAME
    host: Text = "*"


class AclCheckResult(Struct, frozen=True, kw_only=True):
    """The decision, and the rule that decided, if one did."""

    allowed: bool
    reason: str
    rule: AclRule | None
    command: str


async def get_acls(request: ClusterRequest) -> AclPage:
    query: AclsQuery = request.query
    principal = None if query.principal is None else principal_of(query.principal)
    kind = None
    if query.resource_type is not None:
        kind = _choice(query.resource_type, RESOURCE_TYPES, "resource type")
    is_on = True
    try:
        acls = await _found(request, principal, kind, query.resource)
    except KafkaError as error:
        if error.code is not ErrorCode.SECURITY_DISABLED:
            raise
        is_on, acls = False, []
    wanted = query.q.casefold()
    rows = [_rule(acl) for acl in acls if wanted in str(acl).casefold()]
    rows = ordered(rows, query, SORTS, "principal")
    start = (query.page - 1) * query.limit
    return AclPage(
        items=rows[start : start + query.limit],
        total=len(rows),
        page=query.page,
        limit=query.limit,
        authorizer=is_on,
    )


SORTS: Final[dict[str, Any]] = {
    "principal": lambda row: (row.principal, row.resource_type, row.resource, row.operation),
    "resource": lambda row: (row.resource_type, row.resource),
    "resource_type": lambda row: row.resource_type,
    "operation": lambda row: row.operation,
    "permission": lambda row: row.permission,
    "pattern": lambda row: row.pattern,
    "host": lambda row: row.host,
}


async def _found(
    request: ClusterRequest,
    principal: str | None,
    kind: ResourceType | None,
    name: str | None,
) -> list[Acl]:
    if name is None:
        wanted = rule_filter(kind or ResourceType.ANY, principal=principal)
        return await list_rules(request.pool, wanted)
    resources = [(each, name) for each in ([kind] if kind else RESOURCE_TYPES)]
    return await find_rules(request.pool, resources, principal)


async def create_acls(request: ClusterRequest) -> AclsResult:
    body: AclsBody = request.body
    acls = [_acl(rule) for rule in body.rules]
    for acl in acls:
        _check_operation(acl)
    if body.dry_run:
        await list_rules(request.pool, rule_filter())  # access control is on, and may be seen
    else:
        await add_rules(request.pool, acls)
    return AclsResult(
        dry_run=body.dry_run,
        command=" && ".join(_add_command(request, group) for group in _grouped(acls)),
        rules=[_rule(acl) for acl in acls],
    )


async def delete_acls(request: ClusterRequest) -> AclsResult:
    body: AclsBody = request.body
    wanted = [_acl(rule) for rule in body.rules]
    known = dict.fromkeys(await list_rules(request.pool, rule_filter()))
    there = [acl for acl in wanted if acl in known]
    if not there:
        raise problem("not_found", "None of these rules exists.", "GET acls lists all.")
    if not body.dry_run:
        await remove_rules(request.pool, there)
    return AclsResult(
        dry_run=body.dry_run,
        command=" && ".join(_remove_command(request, group) for group in _grouped(there)),
        rules=[_rule(acl) for acl in there],
        unknown=[_rule(acl) for acl in wanted if acl not in known],
    )


async def check_acl(request: ClusterRequest) -> AclCheckResult:
    body: AclCheckBody = request.body
    operation = _choice(body.operation, OPERATIONS, "operation")
    kind = _choice(body.resource_type, RESOURCE_TYPES, "resource type")
    resource = (kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else body.resource)
    words = ["acls", "check", "--user", body.user, "--operation", title(operation)]
    host = [] if body.host == "*" else ["--host", body.host]
    command = request.cluster.command(*words, *_resource_words(resource), *host)
    try:
        found = await check_right(request.pool, body.user, body.host, operation, resource)
    except ValueError as error:
        raise problem("invalid", f"{error}.") from None
    except KafkaError as error:
        if error.code is not ErrorCode.SECURITY_DISABLED:
            raise
        reason = "access control is off in this cluster"
        return AclCheckResult(allowed=True, reason=reason, rule=None, command=command)
    return AclCheckResult(
        allowed=found.is_allowed,
        reason=found.reason,
        rule=None if found.rule is None else _rule(found.rule),
        command=command,
    )


def _acl(rule: AclRule) -> Acl:
    kind = _choice(rule.resource_type, RESOURCE_TYPES, "resource type")
    return new_rule(
        (kind, rule.resource, _choice(rule.operation, OPERATIONS, "operation")),
        rule.principal,
        host=rule.host,
        pattern=_choice(rule.pattern, PATTERNS, "pattern"),
        permission=_choice(rule.permission, PERMISSIONS, "permission"),
    )


def _check_operation(acl: Acl) -> None:
    known = (AclOperation.ALL, *OPERATIONS_OF[acl.resource_type])
    if acl.operation not in known:
        raise problem(
            "invalid",
            f"There is no operation {acl.operation.name} on {acl.resource_type.name}.",
            f"Choose one of {', '.join(one.name for one in known)}.",
        )


def _rule(acl: Acl) -> AclRule:
    return AclRule(
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation.name,
        permission=acl.permission.name,
        resource_type=acl.resource_type.name,
        resource=acl.name,
        pattern=acl.pattern_type.name,
    )


def _choice(text: str, choices: tuple[Choice, ...], what: str) -> Choice:
    try:
        return parse_choice(text, choices)
    except ValueError:
        names = ", ".join(one.name for one in choices)
        raise problem("invalid", f"There is no {what} {text}.", f"Choose one of {names}.") from None


# Commands


def _grouped(acls: Iterable[Acl]) -> list[list[Acl]]:
    """Rules that differ in their operation only: one command adds or removes them."""
    groups: dict[tuple[object, ...], list[Acl]] = {}
    for acl in acls:
        resource = (acl.resource_type, acl.name, acl.pattern_type)
        groups.setdefault((acl.principal, *resource, acl.host, acl.permission), []).append(acl)
    return list(groups.values())


def _resource_words(resource: Resource) -> list[str]:
    kind, name = resource
    return ["--cluster"] if kind is ResourceType.CLUSTER else [RESOURCE_OPTIONS[kind], name]


def _rule_words(acls: list[Acl]) -> list[str]:
    operations = [word for acl in acls for word in ("--operation", title(acl.operation))]
    first = acls[0]
    resource = _resource_words((first.resource_type, first.name))
    return ["--user", first.principal.removeprefix("User:"), *operations, *resource]


def _add_command(request: ClusterRequest, acls: list[Acl]) -> str:
    first, words = acls[0], _rule_words(acls)
    if first.pattern_type is PatternType.PREFIXED:
        words.append("--prefix")
    if first.permission is AclPermission.DENY:
        words.append("--deny")
    if first.host != "*":
        words += ["--host", first.host]
    return request.cluster.command("acls", "add", *words)


def _remove_command(request: ClusterRequest, acls: list[Acl]) -> str:
    first, words = acls[0], _rule_words(acls)
    words.append("--prefix" if first.pattern_type is PatternType.PREFIXED else "--literal")
    words.append("--deny" if first.permission is AclPermission.DENY else "--allow")
    return request.cluster.command("acls", "remove", *words, "--host", first.host, "--yes")


ENDPOINTS = (
    ApiEndpoint(
        "GET",
        "acls",
        get_acls,
        "Access rules, all or those of a user or a resource",
        query=AclsQuery,
        response=AclPage,
        tag="access",
    ),
    ApiEndpoint(
        "POST",
        "acls",
        create_acls,
        "Add access rules",
        body=AclsBody,
        response=AclsResult,
        tag="access",
    ),
    ApiEndpoint(
        "POST",
        "acls/delete",
        delete_acls,
        "Remove access rules",
        body=AclsBody,
        response=AclsResult,
        tag="access",
    ),
    ApiEndpoint(
        "POST",
        "acls/check",
        check_acl,
        "Whether a user may do something, and the rule that decides",
        body=AclCheckBody,
        response=AclCheckResult,
        tag="access",
        is_write=False,
    ),
)
