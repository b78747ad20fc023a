"""Requests about quotas, and their use on each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from riverrun.admin.requests import ask_each, check
from riverrun.client.pool import ConnectionPool
from riverrun.security.quotas import CLIENT_ID, USER, Entity
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_client_quotas_request import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from riverrun.wire.messages.alter_client_quotas_response import AlterClientQuotasResponse
from riverrun.wire.messages.describe_client_quotas_request import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from riverrun.wire.messages.describe_client_quotas_response import DescribeClientQuotasResponse
from riverrun.wire.private.describe_quota_use_request import DescribeQuotaUseRequest
from riverrun.wire.private.describe_quota_use_response import MeasuredUse

EXACT: Final = 0
DEFAULT: Final = 1
USE_SECONDS_MAX: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """What the clients of one quota use on one node. Each node enforces the quota by itself."""

    node: int
    use: MeasuredUse

    def described(self) -> dict[str, object]:
        names = {"user": self.use.user, "client_id": self.use.client_id}
        return {"node": self.node, **names, "rate": round(self.use.rate, 3)}


@dataclass(slots=True, kw_only=True)
class ListedQuota:
    entity: dict[str, str | None]
    """Names by type; None is the default of the type."""
    key: str
    limit: float
    uses: list[NodeUse] = field(default_factory=list)

    def described(self) -> dict[str, object]:
        return {
            "entity": self.entity,
            "quota": self.key,
            "limit": self.limit,
            "uses": [use.described() for use in self.uses],
        }


async def list_quotas(
    pool: ConnectionPool, entity: Entity, *, is_strict: bool = False
) -> list[ListedQuota]:
    """The quotas of an entity, and unless ``is_strict`` those of narrower ones; all quotas for an
    empty entity."""
    request = DescribeClientQuotasRequest(
        components=tuple(
            ComponentData(
                entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name
            )
            for kind, name in entity.items()
        ),
        strict=is_strict,
    )
    response: DescribeClientQuotasResponse = await pool.request(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, request
    )
    check(response.error_code, response.error_message, "quotas")
    found = [
        ListedQuota(
            entity={part.entity_type: part.entity_name for part in entry.entity},
            key=value.key,
            limit=value.value,
        )
        for entry in response.entries or ()
        for value in entry.values
    ]
    return sorted(found, key=lambda quota: (_order(quota.entity), quota.key))


def _order(entity: Entity) -> list[tuple[str, str]]:
    return [(kind, entity[kind] or "") for kind in sorted(entity, reverse=True)]


async def measure_uses(pool: ConnectionPool) -> tuple[list[NodeUse], list[int]]:
    """The use of quotas on all nodes, and the nodes that do not report it."""
    await pool.metadata(())
    messages = dict.fromkeys(pool.cluster.nodes, DescribeQuotaUseRequest())
    answers, silent = await ask_each(
        pool, messages, ApiKey.DESCRIBE_QUOTA_USE, version=0, limit_s=USE_SECONDS_MAX
    )
    uses: list[NodeUse] = []
    for node, answer in answers.items():
        check(answer.error_code, answer.error_message, f"use of quotas on node {node}")
        uses += [NodeUse(node=node, use=use) for use in answer.uses]
    return uses, silent


async def list_with_uses(
    pool: ConnectionPool, entity: Entity | None = None
) -> tuple[list[ListedQuota], list[int]]:
    """Quotas with what clients use of them now, those of an entity and of narrower ones or all;
    and the nodes that do not report uses."""
    quotas = await list_quotas(pool, {})
    uses, silent = await measure_uses(pool) if quotas else ([], [])
    attribute(quotas, uses)
    wanted = (entity or {}).items()
    return [quota for quota in quotas if wanted <= quota.entity.items()], silent


def attribute(quotas: Sequence[ListedQuota], uses: Sequence[NodeUse]) -> None:
    """Add each use to the quota that limits it: the most specific one. Highest uses come first."""
    by_names = {(quota.key, *_names(quota.entity)): quota for quota in quotas}
    for one in sorted(uses, key=lambda use: -use.use.rate):
        use = one.use
        users = (use.user, None) if use.user else ("",)
        clients = (use.client_id, None) if use.client_id else ("",)
        candidates = [(use.key, user, client) for user in users for client in clients]
        quota = next((by_names[names] for names in candidates if names in by_names), None)
        if quota is not None:
            quota.uses.append(one)


def _names(entity: Entity) -> tuple[str | None, str | None]:
    return entity.get(USER, ""), entity.get(CLIENT_ID, "")


async def alter_quotas(
    pool: ConnectionPool,
    entity: Entity,
    values: Mapping[str, float | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set quotas of an entity; None removes one."""
    changes = tuple(
        OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()
    )
    parts = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items())
    request = AlterClientQuotasRequest(
        entries=(EntryData(entity=parts, ops=changes),), validate_only=validate_only
    )
    response: AlterClientQuotasResponse = await pool.request(ApiKey.ALTER_CLIENT_QUOTAS, request)
    for row in response.entries:
        check(row.error_code, row.error_message, "quotas")
