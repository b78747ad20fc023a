"""Rate limits of moves (KIP-73): set before a plan runs, removed when it ends, however it ends.

Brokers get a rate for each side. Topics list the replicas that the rates apply to. Lists that were
there before stay, and rates that were there before are restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from riverrun.cli.balance.cluster_state import TOPIC_RESOURCE
from riverrun.cli.support.broker_settings import BROKER_RESOURCE, ask_broker_settings
from riverrun.cli.support.session import check
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.placement.planner.plan import PlannedMove
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_LIST = "leader.replication.throttled.replicas"
FOLLOWER_LIST = "follower.replication.throttled.replicas"
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DYNAMIC_BROKER = 2
RESOURCES_PER_REQUEST = 500
LOOKS_MAX = 20
LOOK_EVERY_SECONDS = 0.1
"""A node learns of a change slightly after the controller has made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveThrottle:
    """The rate limit of one plan."""

    bytes_per_second: int
    lists: Mapping[str, Mapping[str, str]]
    """The replicas that the plan adds to the lists of each topic, by setting."""
    old_rates: Mapping[int, Mapping[str, str]]
    """The rates of each broker from before, by setting."""


async def set_throttle(
    pool: ConnectionPool,
    moves: Sequence[PlannedMove],
    brokers: Iterable[int],
    bytes_per_second: int,
) -> MoveThrottle:
    copying = [move for move in moves if move.adding]
    throttle = MoveThrottle(
        bytes_per_second=bytes_per_second,
        lists=_lists(copying),
        old_rates=await _ask_rates(pool, brokers),
    )
    rate = str(bytes_per_second)
    resources = [
        _resource(
            BROKER_RESOURCE, str(node), {LEADER_RATE: (SET, rate), FOLLOWER_RATE: (SET, rate)}
        )
        for node in throttle.old_rates
    ]
    resources += [
        _resource(TOPIC_RESOURCE, topic, {name: (APPEND, text) for name, text in lists.items()})
        for topic, lists in throttle.lists.items()
    ]
    await _alter(pool, resources)
    return throttle


async def remove_throttle(pool: ConnectionPool, throttle: MoveThrottle) -> None:
    """Restore what was there before. Topics that were deleted meanwhile are skipped."""
    resources = [
        _resource(TOPIC_RESOURCE, topic, {name: (SUBTRACT, text) for name, text in lists.items()})
        for topic, lists in throttle.lists.items()
    ]
    await _alter(pool, resources, may_be_gone=True)
    empty = await _empty_lists(pool, throttle.lists)
    resources = [
        _resource(TOPIC_RESOURCE, topic, dict.fromkeys(names, (DELETE, None)))
        for topic, names in empty.items()
    ]
    for node, old in throttle.old_rates.items():
        changes: dict[str, tuple[int, str | None]] = {
            name: (SET, old[name]) if name in old else (DELETE, None)
            for name in (LEADER_RATE, FOLLOWER_RATE)
        }
        resources.append(_resource(BROKER_RESOURCE, str(node), changes))
    await _alter(pool, resources, may_be_gone=True)


def _lists(moves: Iterable[PlannedMove]) -> dict[str, dict[str, str]]:
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for move in moves:
        leaders.setdefault(move.topic, []).extend(f"{move.partition}:{n}" for n in move.before)
        followers.setdefault(move.topic, []).extend(f"{move.partition}:{n}" for n in move.adding)
    return {
        topic: {LEADER_LIST: ",".join(leaders[topic]), FOLLOWER_LIST: ",".join(followers[topic])}
        for topic in leaders
    }


async def _ask_rates(pool: ConnectionPool, brokers: Iterable[int]) -> dict[int, dict[str, str]]:
    """The rates that are set for each broker that responds."""
    settings = await ask_broker_settings(pool, brokers, (LEADER_RATE, FOLLOWER_RATE))
    return {
        node: {
            name: row.value
            for name, row in rows.items()
            if row.config_source == DYNAMIC_BROKER and row.value is not None
        }
        for node, rows in settings.items()
    }


async def _empty_lists(
    pool: ConnectionPool, lists: Mapping[str, Mapping[str, str]]
) -> dict[str, list[str]]:
    """The lists without entries. They are removed, so that no setting stays behind."""
    for _ in range(LOOKS_MAX):
        values = await _ask_lists(pool, list(lists))
        is_old = any(
            entry in (values[topic].get(name) or "").split(",")
            for topic, ours in lists.items()
            if topic in values
            for name, text in ours.items()
            for entry in text.split(",")
        )
        if not is_old:
            break
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    return {
        topic: [name for name, value in settings.items() if not value]
        for topic, settings in values.items()
    }


async def _ask_lists(
    pool: ConnectionPool, topics: Sequence[str]
) -> dict[str, dict[str, str | None]]:
    if not topics:
        return {}
    request = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE,
                resource_name=topic,
                configuration_keys=(LEADER_LIST, FOLLOWER_LIST),
            )
            for topic in topics
        )
    )
    answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, request)
    return {
        result.resource_name: {row.name: row.value for row in result.configs}
        for result in answer.results
        if result.error_code is ErrorCode.NONE
    }


def _resource(
    kind: int, name: str, changes: Mapping[str, tuple[int, str | None]]
) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(
            AlterableConfig(name=setting, config_operation=operation, value=value)
            for setting, (operation, value) in changes.items()
        ),
    )


async def _alter(
    pool: ConnectionPool, resources: Sequence[AlterConfigsResource], *, may_be_gone: bool = False
) -> None:
    gone = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST)
    for start in range(0, len(resources), RESOURCES_PER_REQUEST):
        part = tuple(resources[start : start + RESOURCES_PER_REQUEST])
        request = IncrementalAlterConfigsRequest(resources=part, validate_only=False)
        answer: IncrementalAlterConfigsResponse = await pool.request(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, request
        )
        for row in answer.responses:
            if not (may_be_gone and row.error_code in gone):
                check(row.error_code, row.error_message, f"throttle of {row.resource_name}")
