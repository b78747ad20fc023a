"""Settings of topics, of brokers and of the cluster in REST v3.

A broker is asked about its own settings, because only it knows its file. The settings of the
cluster are those that were set for all brokers at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from riverrun.admin.topics.admin import TOPIC_RESOURCE
from riverrun.client.pool import ConnectionPool
from riverrun.console.api.v3.clusters import find_broker
from riverrun.console.api.v3.config_requests import (
    V3Config,
    V3ConfigBatch,
    V3ConfigChange,
    V3ConfigValue,
    alter_configs,
    common_fields,
    configs_by_resource,
    named_config,
    put_change,
    question,
    reset_change,
)
from riverrun.console.api.v3.frame import ALL, NO_CONTENT, V3List, V3Request, operation
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)

BROKER_RESOURCE: Final = 4
WHOLE_CLUSTER: Final = ""
TOPICS_PER_REQUEST: Final = 500


class V3TopicConfig(V3Config, frozen=True, kw_only=True):
    """A setting of a topic."""

    topic_name: str


class V3BrokerConfig(V3Config, frozen=True, kw_only=True):
    """A setting of a broker."""

    broker_id: int


class V3ClusterConfig(V3Config, frozen=True, kw_only=True):
    """A setting of all brokers."""

    config_type: str = "BROKER"


# Topics


async def list_topic_configs(request: V3Request) -> V3List[V3TopicConfig]:
    name = request.params["topic_name"]
    found = await _of_topics(request.pool, [name])
    rows = [_topic_config(request, name, row) for row in found[name]]
    return request.listed("KafkaTopicConfigList", ["topics", name, "configs"], rows)


async def list_all_topic_configs(request: V3Request) -> V3List[V3TopicConfig]:
    topics = (await request.inner.metadata()).topics
    names = sorted(one.name or "" for one in topics if one.error_code is ErrorCode.NONE)
    found = await _of_topics(request.pool, names)
    rows = [_topic_config(request, name, row) for name, configs in found.items() for row in configs]
    return request.listed("KafkaTopicConfigList", ["topics", ALL, "configs"], rows)


async def get_topic_config(request: V3Request) -> V3TopicConfig:
    topic = request.params["topic_name"]
    found = await _of_topics(request.pool, [topic])
    return _topic_config(request, topic, named_config(request, found[topic]))


async def put_topic_config(request: V3Request) -> Response:
    topic = request.params["topic_name"]
    return await alter_configs(request, TOPIC_RESOURCE, topic, [put_change(request)])


async def delete_topic_config(request: V3Request) -> Response:
    topic = request.params["topic_name"]
    return await alter_configs(request, TOPIC_RESOURCE, topic, [reset_change(request)])


async def alter_topic_configs(request: V3Request) -> Response:
    topic = request.params["topic_name"]
    body: V3ConfigBatch = request.body
    return await alter_configs(
        request, TOPIC_RESOURCE, topic, body.data, validate_only=body.validate_only
    )


async def _of_topics(
    pool: ConnectionPool, names: Sequence[str]
) -> dict[str, tuple[DescribeConfigsResourceResult, ...]]:
    found: dict[str, tuple[DescribeConfigsResourceResult, ...]] = {}
    for start in range(0, len(names), TOPICS_PER_REQUEST):
        part = names[start : start + TOPICS_PER_REQUEST]
        message = question(TOPIC_RESOURCE, part)
        answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, message)
        found |= configs_by_resource(answer)
    return found


def _topic_config(
    request: V3Request, topic: str, row: DescribeConfigsResourceResult
) -> V3TopicConfig:
    place = ("topics", topic, "configs", row.name)
    name = f"/topic={topic}/config={row.name}"
    return V3TopicConfig(
        kind="KafkaTopicConfig",
        metadata=request.metadata(*place, name=name),
        topic_name=topic,
        **common_fields(request, row),
    )


# Brokers


async def list_broker_configs(request: V3Request) -> V3List[V3BrokerConfig]:
    broker = (await find_broker(request, request.number("broker_id"))).broker_id
    rows = [_broker_config(request, broker, row) for row in await _of_broker(request, broker)]
    return request.listed("KafkaBrokerConfigList", ["brokers", broker, "configs"], rows)


async def list_all_broker_configs(request: V3Request) -> V3List[V3BrokerConfig]:
    await request.pool.metadata(())
    rows = [
        _broker_config(request, broker, row)
        for broker in sorted(request.pool.cluster.nodes)
        for row in await _of_broker(request, broker)
    ]
    return request.listed("KafkaBrokerConfigList", ["brokers", ALL, "configs"], rows)


async def get_broker_config(request: V3Request) -> V3BrokerConfig:
    broker = (await find_broker(request, request.number("broker_id"))).broker_id
    row = named_config(request, await _of_broker(request, broker))
    return _broker_config(request, broker, row)


async def put_broker_config(request: V3Request) -> Response:
    return await _alter_broker(request, [put_change(request)])


async def delete_broker_config(request: V3Request) -> Response:
    return await _alter_broker(request, [reset_change(request)])


async def alter_broker_configs(request: V3Request) -> Response:
    body: V3ConfigBatch = request.body
    return await _alter_broker(request, body.data, validate_only=body.validate_only)


async def _alter_broker(
    request: V3Request, changes: Sequence[V3ConfigChange], *, validate_only: bool = False
) -> Response:
    broker = (await find_broker(request, request.number("broker_id"))).broker_id
    return await alter_configs(
        request, BROKER_RESOURCE, str(broker), changes, validate_only=validate_only, node=broker
    )


async def _of_broker(request: V3Request, broker: int) -> tuple[DescribeConfigsResourceResult, ...]:
    message = question(BROKER_RESOURCE, [str(broker)])
    answer: DescribeConfigsResponse = await request.pool.request_node(
        broker, ApiKey.DESCRIBE_CONFIGS, message
    )
    return configs_by_resource(answer)[str(broker)]


def _broker_config(
    request: V3Request, broker: int, row: DescribeConfigsResourceResult
) -> V3BrokerConfig:
    place = ("brokers", broker, "configs", row.name)
    return V3BrokerConfig(
        kind="KafkaBrokerConfig",
        metadata=request.metadata(*place, name=f"/broker={broker}/config={row.name}"),
        broker_id=broker,
        **common_fields(request, row),
    )


# The cluster


async def list_cluster_configs(request: V3Request) -> V3List[V3ClusterConfig]:
    rows = [_cluster_config(request, row) for row in await _of_cluster(request)]
    return request.listed("KafkaClusterConfigList", ["broker-configs"], rows)


async def get_cluster_config(request: V3Request) -> V3ClusterConfig:
    return _cluster_config(request, named_config(request, await _of_cluster(request)))


async def put_cluster_config(request: V3Request) -> Response:
    return await alter_configs(request, BROKER_RESOURCE, WHOLE_CLUSTER, [put_change(request)])


async def delete_cluster_config(request: V3Request) -> Response:
    return await alter_configs(request, BROKER_RESOURCE, WHOLE_CLUSTER, [reset_change(request)])


async def alter_cluster_configs(request: V3Request) -> Response:
    body: V3ConfigBatch = request.body
    return await alter_configs(
        request, BROKER_RESOURCE, WHOLE_CLUSTER, body.data, validate_only=body.validate_only
    )


async def _of_cluster(request: V3Request) -> tuple[DescribeConfigsResourceResult, ...]:
    message = question(BROKER_RESOURCE, [WHOLE_CLUSTER])
    answer: DescribeConfigsResponse = await request.pool.request(ApiKey.DESCRIBE_CONFIGS, message)
    return configs_by_resource(answer)[WHOLE_CLUSTER]


def _cluster_config(request: V3Request, row: DescribeConfigsResourceResult) -> V3ClusterConfig:
    return V3ClusterConfig(
        kind="KafkaClusterConfig",
        metadata=request.metadata("broker-configs", row.name, name=f"/broker-config={row.name}"),
        **common_fields(request, row),
    )


ENDPOINTS = (
    *operation(
        "GET",
        "topics/-/configs",
        list_all_topic_configs,
        "List the configs of all topics",
        response=V3List[V3TopicConfig],
    ),
    *operation(
        "GET",
        "topics/{topic_name}/configs",
        list_topic_configs,
        "List the configs of a topic",
        response=V3List[V3TopicConfig],
    ),
    *operation(
        "POST",
        "topics/{topic_name}/configs:alter",
        alter_topic_configs,
        "Change several configs of a topic",
        body=V3ConfigBatch,
        status=204,
        **NO_CONTENT,
    ),
    *operation(
        "GET",
        "topics/{topic_name}/configs/{name}",
        get_topic_config,
        "Get a config of a topic",
        response=V3TopicConfig,
    ),
    *operation(
        "PUT",
        "topics/{topic_name}/configs/{name}",
        put_topic_config,
        "Set a config of a topic",
        body=V3ConfigValue,
        status=204,
        **NO_CONTENT,
    ),
    *operation(
        "DELETE",
        "topics/{topic_name}/configs/{name}",
        delete_topic_config,
        "Reset a config of a topic",
        status=204,
        **NO_CONTENT,
    ),
    *operation(
        "GET",
        "brokers/-/configs",
        list_all_broker_configs,
        "List the configs of all brokers",
        response=V3List[V3BrokerConfig],
    ),
    *operation(
        "GET",
        "brokers/{broker_id}/configs",
        list_broker_configs,
        "List the configs of a broker",
        response=V3List[V3BrokerConfig],
    ),
    *operation(
        "POST",
        "brokers/{broker_id}/configs:alter",
        alter_broker_configs,
        "Change several configs of a broker",
        body=V3ConfigBatch,
        status=204,
        **NO_CONTENT,
    ),
    *operation(
        "GET",
        "brokers/{broker_id}/configs/{name}",
        get_broker_config,
        "Get a config of a broker",
        response=V3BrokerConfig,
    ),
    *operation(
        "PUT",
        "brokers/{broker_id}/configs/{name}",
        put_broker_config,
        "Set a config of a broker",
        body=V3ConfigValue,
        status=204,
        **NO_CONTENT,
    ),
    *operation(
        "DELETE",
        "brokers/{broker_id}/configs/{name}",
        delete_broker_config,
        "Reset a config of a broker",
        status=204,
        **NO_CONTENT,
    ),
    *operation(
        "GET",
        "broker-configs",
        list_cluster_configs,
        "List the configs that were set for all brokers",
        response=V3List[V3ClusterConfig],
    ),
    *operation(
        "POST",
        "broker-configs:alter",
        alter_cluster_configs,
        "Change several configs of all brokers",
        body=V3ConfigBatch,
        status=204,
        **NO_CONTENT,
    ),
    *operation(
        "GET",
        "broker-configs/{name}",
        get_cluster_config,
        "Get a config of all brokers",
        response=V3ClusterConfig,
    ),
    *operation(
        "PUT",
        "broker-configs/{name}",
        put_cluster_config,
        "Set a config of all brokers",
        body=V3ConfigValue,
        status=204,
        **NO_CONTENT,
    ),
    *operation(
        "DELETE",
        "broker-configs/{name}",
        delete_cluster_config,
        "Reset a config of all brokers",
        status=204,
        **NO_CONTENT,
    ),
)
