"""Requests about access control lists."""

from __future__ import annotations

from collections.abc import Sequence

from riverrun.admin.access.rules import NO_ID, Resource, principal_of, rule_filter
from riverrun.admin.requests import check
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AuthorizationResult,
    Authorizer,
    PatternType,
    ResourceType,
)
from riverrun.security.principal import Principal
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_acls_request import AclCreation, CreateAclsRequest
from riverrun.wire.messages.create_acls_response import CreateAclsResponse
from riverrun.wire.messages.delete_acls_request import DeleteAclsFilter, DeleteAclsRequest
from riverrun.wire.messages.delete_acls_response import DeleteAclsResponse
from riverrun.wire.messages.describe_acls_request import DescribeAclsRequest
from riverrun.wire.messages.describe_acls_response import DescribeAclsResponse
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse

BROKER_RESOURCE = 4
ALL_USERS = "User:*"


async def list_rules(pool: ConnectionPool, wanted: AclFilter) -> list[Acl]:
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    response: DescribeAclsResponse = await pool.request(ApiKey.DESCRIBE_ACLS, request)
    _explain_disabled(response.error_code)
    check(response.error_code, response.error_message, "ACLs")
    found = [
        Acl(
            id=NO_ID,
            resource_type=ResourceType(resource.resource_type),
            pattern_type=PatternType(resource.pattern_type),
            name=resource.resource_name,
            principal=row.principal,
            host=row.host,
            operation=AclOperation(row.operation),
            permission=AclPermission(row.permission_type),
        )
        for resource in response.resources
        for row in resource.acls
    ]
    return sorted(
        found, key=lambda acl: (acl.principal, acl.resource_type, acl.name, acl.operation)
    )


async def find_rules(
    pool: ConnectionPool,
    resources: Sequence[Resource],
    principal: str | None,
    *,
    is_exact: bool = False,
) -> list[Acl]:
    """The rules that affect some resources, or that name them if ``is_exact``; of one principal,
    or of all. Without resources the rules of all resources."""
    pattern = PatternType.ANY if is_exact else PatternType.MATCH
    filters = [rule_filter(kind, name, principal, pattern) for kind, name in resources]
    found: dict[Acl, None] = {}
    for wanted in filters or [rule_filter(principal=principal, pattern=pattern)]:
        found |= dict.fromkeys(await list_rules(pool, wanted))
    return list(found)


async def affecting_rules(
    pool: ConnectionPool, resources: Sequence[Resource], principal: str | None
) -> list[Acl]:
    """The rules that affect some resources and a principal, also as one of all users."""
    found = await find_rules(pool, resources, principal)
    if principal is not None and principal != ALL_USERS:
        found += await find_rules(pool, resources, ALL_USERS)
    return found


async def check_right(
    pool: ConnectionPool, user: str, host: str, operation: AclOperation, resource: Resource
) -> AuthorizationResult:
    """Whether a user may do something, and the rule that decides."""
    acls = await list_rules(pool, rule_filter())
    super_users, is_open = await authorizer_settings(pool)
    authorizer = Authorizer(acls, super_users=super_users, is_open=is_open)
    principal = Principal.parse(principal_of(user))
    return authorizer.decide(principal, host, operation, *resource)


async def add_rules(pool: ConnectionPool, acls: Sequence[Acl]) -> None:
    request = CreateAclsRequest(
        creations=tuple(
            AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        )
    )
    response: CreateAclsResponse = await pool.request(ApiKey.CREATE_ACLS, request)
    for acl, row in zip(acls, response.results, strict=True):
        _explain_disabled(row.error_code)
        check(row.error_code, row.error_message, str(acl))


async def remove_rules(pool: ConnectionPool, acls: Sequence[Acl]) -> None:
    request = DeleteAclsRequest(
        filters=tuple(
            DeleteAclsFilter(
                resource_type_filter=acl.resource_type,
                resource_name_filter=acl.name,
                pattern_type_filter=acl.pattern_type,
                principal_filter=acl.principal,
                host_filter=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        )
    )
    response: DeleteAclsResponse = await pool.request(ApiKey.DELETE_ACLS, request)
    for acl, row in zip(acls, response.filter_results, strict=True):
        check(row.error_code, row.error_message, str(acl))


async def authorizer_settings(pool: ConnectionPool) -> tuple[list[str], bool]:
    """The super users, and whether resources without rules are open, as one broker has them."""
    names = ("super.users", "allow.everyone.if.no.acl.found")
    await pool.metadata(())
    node = next(iter(sorted(pool.cluster.nodes)))
    resource = DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node), configuration_keys=names
    )
    response: DescribeConfigsResponse = await pool.request_node(
        node, ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=(resource,))
    )
    (result,) = response.results
    check(result.error_code, result.error_message, f"settings of broker {node}")
    values = {row.name: row.value or "" for row in result.configs}
    super_users = [text.strip() for text in values.get(names[0], "").split(";") if text.strip()]
    return super_users, values.get(names[1], "") == "true"


def _explain_disabled(code: ErrorCode) -> None:
    if code is ErrorCode.SECURITY_DISABLED:
        raise KafkaError(
            code,
            "access control is off in this cluster; set authorizer.class.name=riverrun on all "
            "nodes (`riverrun docs security`)",
        )
