"""Quotas of users, client ids and addresses, with what clients use of them now."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from riverrun.admin.access.quota_admin import ListedQuota, alter_quotas, list_with_uses
from riverrun.console.listing import ItemPage, ListQuery, matching, ordered, page_of
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ClusterRequest
from riverrun.security.quotas import (
    BYTE_KINDS,
    CLIENT_ID,
    CLIENT_KINDS,
    IP,
    IP_KINDS,
    USER,
    Entity,
    entity_refusal,
    key_refusal,
)

DEFAULT_NAME: Final = "<default>"
"""Stands for every name that has no quota of its own."""
QUOTAS_SECONDS: Final = 2.0

EntityName = Annotated[str, Meta(min_length=1, max_length=1024)] | None


class QuotaRow(Struct, frozen=True, kw_only=True):
    """The quotas of an entity. ``<default>`` stands for each name without a quota of its own. Every
    node enforces a quota by itself: ``use`` is the highest rate on any node, or null."""

    user: str | None
    client_id: str | None
    ip: str | None
    limits: dict[str, float]
    use: dict[str, float | None]
    busiest: dict[str, str | None]
    """Who uses the most of each quota, and on which node."""


class QuotaBody(Struct, kw_only=True):
    """Name a user, a client id, both, or an address; ``<default>`` for all others. A limit of null
    removes it."""

    limits: Annotated[dict[str, float | None], Meta(min_length=1)]
    user: EntityName = None
    client_id: EntityName = None
    ip: EntityName = None
    dry_run: bool = False


class QuotaResult(Struct, frozen=True, kw_only=True):
    """The limits that changed, or would change."""

    dry_run: bool
    command: str
    limits: dict[str, float | None]


async def get_quotas(request: ClusterRequest) -> ItemPage[QuotaRow]:
    query: ListQuery = request.query
    found, _ = await request.results.get(
        "quotas", QUOTAS_SECONDS, lambda: list_with_uses(request.pool)
    )
    rows = [_row(quotas) for quotas in _by_entity(found)]
    rows = matching(
        rows, query, lambda row: " ".join(filter(None, (row.user, row.client_id, row.ip)))
    )
    return page_of(ordered(rows, query, SORTS, "user"), query)


SORTS: Final[dict[str, Any]] = {
    "user": lambda row: (row.user or "", row.client_id or "", row.ip or ""),
    "client_id": lambda row: row.client_id,
    "ip": lambda row: row.ip,
}


def _by_entity(quotas: list[ListedQuota]) -> list[list[ListedQuota]]:
    groups: dict[tuple[tuple[str, str | None], ...], list[ListedQuota]] = {}
    for quota in quotas:
        groups.setdefault(tuple(sorted(quota.entity.items())), []).append(quota)
    return list(groups.values())


def _row(quotas: list[ListedQuota]) -> QuotaRow:
    entity = quotas[0].entity
    return QuotaRow(
        user=_name(entity, USER),
        client_id=_name(entity, CLIENT_ID),
        ip=_name(entity, IP),
        limits={quota.key: quota.limit for quota in quotas},
        use={
            quota.key: round(quota.uses[0].use.rate, 3) if quota.uses else None for quota in quotas
        },
        busiest={quota.key: _busiest(quota) for quota in quotas},
    )


def _busiest(quota: ListedQuota) -> str | None:
    if not quota.uses:
        return None
    first = quota.uses[0]
    names = [first.use.user, first.use.client_id] if None in quota.entity.values() else []
    return ", ".join([*filter(None, names), f"node {first.node}"])


def _name(entity: Entity, kind: str) -> str | None:
    return (entity[kind] or DEFAULT_NAME) if kind in entity else None


async def set_quotas(request: ClusterRequest) -> QuotaResult:
    """Set and remove quotas. Byte rates are rounded, as the command line does."""
    body: QuotaBody = request.body
    entity = _entity(body)
    limits = {
        key: round(value) if key in BYTE_KINDS and value is not None and isfinite(value) else value
        for key, value in body.limits.items()
    }
    for key, value in limits.items():
        _check_limit(entity, key, value)
    await alter_quotas(request.pool, entity, limits, validate_only=body.dry_run)
    return QuotaResult(
        dry_run=body.dry_run, command=_command(request, entity, limits), limits=limits
    )


def _entity(body: QuotaBody) -> dict[str, str | None]:
    named = {USER: body.user, CLIENT_ID: body.client_id, IP: body.ip}
    entity = {
        kind: None if name == DEFAULT_NAME else name
        for kind, name in named.items()
        if name is not None
    }
    refusal = entity_refusal(entity)
    if refusal is not None:
        raise problem(
            "invalid", f"{refusal}.", "Name a user, a client_id, both of them, or an ip alone."
        )
    return entity


def _check_limit(entity: Entity, key: str, value: float | None) -> None:
    kinds = IP_KINDS if IP in entity else CLIENT_KINDS
    if key not in kinds:
        raise problem("invalid", f"There is no quota {key} here.", f"Use {', '.join(kinds)}.")
    refusal = None if value is None else key_refusal(entity, key, value)
    if refusal is not None:
        raise problem("invalid", f"{refusal.rstrip('.')}.")


def _command(request: ClusterRequest, entity: Entity, limits: dict[str, float | None]) -> str:
    options: list[str] = []
    for kind, name in entity.items():
        options += [f"--default-{kind}"] if name is None else [f"--{kind}", name]
    values = [f"{key}={value:.15g}" for key, value in limits.items() if value is not None]
    removed = [key for key, value in limits.items() if value is None]
    commands = []
    if values:
        commands.append(request.cluster.command("quotas", "set", *options, *values))
    if removed:
        commands.append(request.cluster.command("quotas", "remove", *options, *removed, "--yes"))
    return " && ".join(commands)


ENDPOINTS = (
    ApiEndpoint(
        "GET",
        "quotas",
        get_quotas,
        "Quotas and what clients use of them",
        query=ListQuery,
        response=ItemPage[QuotaRow],
        tag="access",
    ),
    ApiEndpoint(
        "PUT",
        "quotas",
        set_quotas,
        "Set and remove quotas of a user, a client id or an address",
        body=QuotaBody,
        response=QuotaResult,
        tag="access",
    ),
)
