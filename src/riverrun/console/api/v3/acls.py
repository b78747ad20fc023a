"""ACLs of REST v3: search, create one or several, delete by a filter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from msgspec import Meta, Struct
from starlette.responses import Response

from riverrun.admin.access.rule_admin import add_rules, list_rules, remove_rules
from riverrun.admin.access.rules import NO_ID
from riverrun.console.api.v3.frame import (
    NO_CONTENT,
    V3List,
    V3ListMetadata,
    V3Metadata,
    V3Request,
    invalid,
    operation,
)
from riverrun.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

ANY = "ANY"
Choice = TypeVar("Choice", bound=IntEnum)


class V3Acl(Struct, frozen=True, kw_only=True):
    """An access rule."""

    kind: str = "KafkaAcl"
    metadata: V3Metadata
    cluster_id: str
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class V3AclFilter(Struct, kw_only=True):
    """Which rules are meant. Everything by default."""

    resource_type: str = ANY
    resource_name: str | None = None
    pattern_type: str = ANY
    principal: str | None = None
    host: str | None = None
    operation: str = ANY
    permission: str = ANY


class V3NewAcl(Struct, kw_only=True):
    """A rule to create."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class V3NewAcls(Struct, kw_only=True):
    """Rules to create."""

    data: Annotated[list[V3NewAcl], Meta(min_length=1, max_length=1_000)]


class V3DeletedAcls(Struct, frozen=True, kw_only=True):
    """The rules that were deleted."""

    data: list[V3Acl]


async def search_acls(request: V3Request) -> V3List[V3Acl]:
    found = await list_rules(request.pool, _filter(request.query))
    text = str(request.inner.raw.url.query)
    address = request.url("acls") + (f"?{text}" if text else "")
    return V3List(
        kind="KafkaAclList",
        metadata=V3ListMetadata(self_=address),
        data=[_acl(request, acl) for acl in found],
    )


async def create_acl(request: V3Request) -> Response:
    return await _create(request, [request.body])


async def create_acls(request: V3Request) -> Response:
    body: V3NewAcls = request.body
    return await _create(request, body.data)


async def _create(request: V3Request, rows: Sequence[V3NewAcl]) -> Response:
    await add_rules(request.pool, [_new(row) for row in rows])
    return Response(status_code=201)


async def delete_acls(request: V3Request) -> V3DeletedAcls:
    query: V3AclFilter = request.query
    if query == V3AclFilter():
        raise invalid("A filter is missing: deleting all ACLs at once is refused.")
    found = await list_rules(request.pool, _filter(query))
    if found:
        await remove_rules(request.pool, found)
    return V3DeletedAcls(data=[_acl(request, acl) for acl in found])


def _filter(query: V3AclFilter) -> AclFilter:
    return AclFilter(
        resource_type=_choice(query.resource_type, ResourceType, "resource_type"),
        name=query.resource_name,
        pattern_type=_choice(query.pattern_type, PatternType, "pattern_type"),
        principal=query.principal,
        host=query.host,
        operation=_choice(query.operation, AclOperation, "operation"),
        permission=_choice(query.permission, AclPermission, "permission"),
    )


def _new(row: V3NewAcl) -> Acl:
    acl = Acl(
        id=NO_ID,
        resource_type=_choice(row.resource_type, ResourceType, "resource_type"),
        pattern_type=_choice(row.pattern_type, PatternType, "pattern_type"),
        name=row.resource_name,
        principal=row.principal,
        host=row.host,
        operation=_choice(row.operation, AclOperation, "operation"),
        permission=_choice(row.permission, AclPermission, "permission"),
    )
    for field in ("resource_type", "operation", "permission"):
        if getattr(acl, field).name == ANY:
            raise invalid(f"{field} of a new ACL cannot be ANY.")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise invalid("pattern_type of a new ACL is LITERAL or PREFIXED.")
    return acl


def _choice(text: str, kind: type[Choice], field: str) -> Choice:
    known = {one.name: one for one in kind if one.value > 0}
    if text.upper() not in known:
        raise invalid(f"{field} {text}: choose one of {', '.join(known)}.")
    return known[text.upper()]


def _acl(request: V3Request, acl: Acl) -> V3Acl:
    fields = {
        "resource_type": acl.resource_type.name,
        "resource_name": acl.name,
        "pattern_type": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
    address = f"{request.url('acls')}?{urlencode(fields)}"
    return V3Acl(
        metadata=V3Metadata(self_=address, resource_name=None),
        cluster_id=request.cluster_id,
        **fields,
    )


ENDPOINTS = (
    *operation(
        "GET", "acls", search_acls, "Search ACLs", query=V3AclFilter, response=V3List[V3Acl]
    ),
    *operation(
        "POST", "acls", create_acl, "Create an ACL", body=V3NewAcl, status=201, **NO_CONTENT
    ),
    *operation(
        "DELETE",
        "acls",
        delete_acls,
        "Delete the ACLs that match",
        query=V3AclFilter,
        response=V3DeletedAcls,
    ),
    *operation(
        "POST",
        "acls:batch",
        create_acls,
        "Create several ACLs",
        body=V3NewAcls,
        status=201,
        **NO_CONTENT,
    ),
)
