"""Modes of brokers: maintenance and decommissioning, stored by the cluster as ``broker.mode``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from riverrun.admin.balance.cluster_state import (
    ClusterView,
    PartitionState,
    ask_partitions,
)
from riverrun.admin.broker_settings import BROKER_RESOURCE, MODE
from riverrun.admin.cluster.elections import elect, plan_elections
from riverrun.admin.requests import check
from riverrun.client.pool import ConnectionPool
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)

SET = 0
DELETE = 1
HAND_OVER_SECONDS_MAX = 30.0
LOOK_EVERY_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceEffect:
    """What happens when a node stops. ``offline`` partitions have no other in-sync replica;
    ``not_writable`` ones fall below min.insync.replicas. ``returning`` leaderships prefer the node
    and come back afterwards, as far as its replicas are in sync now."""

    leaders: int
    returning: int
    offline: tuple[str, ...]
    not_writable: tuple[str, ...]


def effect_of(state: ClusterView, node: int) -> MaintenanceEffect:
    held = state.held_by(node)
    offline, not_writable = [], []
    for one in held:
        others = [other for other in one.in_sync if other != node]
        minimum = min(state.min_in_sync.get(one.at.topic, 1), len(one.target))
        if not others:
            offline.append(str(one.at))
        elif len(others) < minimum:
            not_writable.append(str(one.at))
    return MaintenanceEffect(
        leaders=sum(one.leader == node for one in held),
        returning=sum(_may_return(one, node) for one in held),
        offline=tuple(offline),
        not_writable=tuple(not_writable),
    )


def _may_return(partition: PartitionState, node: int) -> bool:
    is_preferred = partition.replicas[0] == node
    return is_preferred and partition.leader != node and node in partition.in_sync


async def set_mode(pool: ConnectionPool, node: int, mode: str | None) -> None:
    """Set the mode of a broker, which need not be up; None returns it to active."""
    change = AlterableConfig(
        name=MODE, config_operation=DELETE if mode is None else SET, value=mode
    )
    resource = AlterConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node), configs=(change,)
    )
    answer: IncrementalAlterConfigsResponse = await pool.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False),
    )
    for row in answer.responses:
        check(row.error_code, row.error_message, f"mode of node {node}")


async def wait_without_leaders(pool: ConnectionPool, node: int) -> list[PartitionState]:
    """Wait until a node leads only what no other replica can lead; returns these partitions."""
    deadline = time.monotonic() + HAND_OVER_SECONDS_MAX
    while True:
        led = [one for one in await ask_partitions(pool) if one.leader == node]
        stuck = [one for one in led if all(other == node for other in one.in_sync)]
        if len(stuck) == len(led) or time.monotonic() > deadline:
            return led
        await asyncio.sleep(LOOK_EVERY_SECONDS)


async def return_leaders(pool: ConnectionPool, node: int) -> int:
    """Let a node lead the partitions that prefer it; the number that it got."""
    preferred: dict[str, set[int]] = {}
    for one in await ask_partitions(pool):
        if _may_return(one, node):
            preferred.setdefault(one.at.topic, set()).add(one.at.partition)
    if not preferred:
        return 0
    wanted: dict[str, frozenset[int] | None] = {
        topic: frozenset(indexes) for topic, indexes in preferred.items()
    }
    plan = await plan_elections(pool, wanted, is_unclean=False)
    if not plan.changes:
        return 0
    return sum(one.failure is None for one in await elect(pool, plan))


def named(partitions: Sequence[str], shown_max: int = 5) -> str:
    shown = ", ".join(partitions[:shown_max])
    more = len(partitions) - shown_max
    return f"{shown} and {more} more" if more > 0 else shown
