"""The effective settings of brokers. Each broker is asked about itself, because only it knows its
file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from riverrun.admin.requests import ask_each
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResourceResult

BROKER_RESOURCE: Final = 4
ANSWER_SECONDS_MAX: Final = 5.0

CORDONED: Final = "cordoned.log.dirs"
MODE: Final = "broker.mode"
ACTIVE: Final = "active"
MAINTENANCE: Final = "maintenance"
DECOMMISSIONING: Final = "decommissioning"

Rows = dict[str, DescribeConfigsResourceResult]


async def ask_broker_settings(
    pool: ConnectionPool, nodes: Iterable[int], names: Sequence[str]
) -> dict[int, Rows]:
    """The named settings of the brokers that respond, by node and name."""
    await pool.metadata(())  # the addresses of the brokers
    messages = {
        node: DescribeConfigsRequest(
            resources=(
                DescribeConfigsResource(
                    resource_type=BROKER_RESOURCE,
                    resource_name=str(node),
                    configuration_keys=tuple(names),
                ),
            )
        )
        for node in nodes
        if node in pool.cluster.nodes
    }
    answers, _ = await ask_each(pool, messages, ApiKey.DESCRIBE_CONFIGS, limit_s=ANSWER_SECONDS_MAX)
    return {
        node: {
            row.name: row
            for result in answer.results
            if result.error_code is ErrorCode.NONE
            for row in result.configs
        }
        for node, answer in answers.items()
    }
