"""The smaller admin requests, called as the router calls them."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.cluster.topics.create_topics import create_topics
from riverrun.metadata.image import ConfigType
from riverrun.metadata.records import ConfigRecord, Record
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.requests import describe_cluster
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages import describe_quorum_request as quorum
from riverrun.wire.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from riverrun.wire.messages.describe_cluster_request import DescribeClusterRequest
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_topic_partitions_request import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.list_config_resources_request import ListConfigResourcesRequest
from tests.cluster.fakes import SeededRandomness, cluster_of, make_configs, replayed
from tests.server.requests.admin_node import Node
from tests.server.requests.test_metadata import fenced, image_of


def ask(node: Node, api: ApiKey, version: int, request: Any) -> Any:
    return asyncio.run(node.ask(api, version, request))


# Topics


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (1, ErrorCode.INVALID_REQUEST),
        (2, ErrorCode.INVALID_REQUEST),
        (3, ErrorCode.TOPIC_DELETION_DISABLED),
        (5, ErrorCode.TOPIC_DELETION_DISABLED),
    ],
)
def test_disabled_deletion_has_an_error_code_by_version(version: int, code: ErrorCode) -> None:
    node = Node(image_of("t"), given={"delete.topic.enable": "false"})
    request = DeleteTopicsRequest(timeout_ms=1, topic_names=("t", "nope"))
    response = ask(node, ApiKey.DELETE_TOPICS, version, request)
    assert [(one.name, one.error_code) for one in response.responses] == [
        ("t", code),
        ("nope", code),
    ]


def test_topics_are_deleted_and_get_partitions() -> None:
    node = Node(image_of("t", "u"))
    grow = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name="u", count=5, assignments=None),),
        timeout_ms=1,
        validate_only=False,
    )
    assert ask(node, ApiKey.CREATE_PARTITIONS, 3, grow).results[0].error_code is ErrorCode.NONE
    drop = DeleteTopicsRequest(timeout_ms=1, topics=(DeleteTopicState(name="t", topic_id=None),))
    assert ask(node, ApiKey.DELETE_TOPICS, 6, drop).responses[0].error_code is ErrorCode.NONE
    sizes = {t.name: len(t.partitions) for t in node.log.current.topics_by_name.values()}
    assert sizes == {"u": 5}


def page(node: Node, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    request = DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return ask(node, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)


def rows(response: Any) -> list[tuple[str, int]]:
    return [
        (topic.name, one.partition_index) for topic in response.topics for one in topic.partitions
    ]


def test_topics_are_described_in_order_of_their_names() -> None:
    node = Node(image_of("b", "a", partitions=1))
    response = page(node, "nope", "b", "a", "bad name", "b")
    assert [(one.name, one.error_code) for one in response.topics] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert response.next_cursor is None
    assert {one.topic_authorized_operations for one in response.topics} == {3576}


@given(
    sizes=st.lists(st.integers(1, 5), max_size=5),
    limit=st.integers(-1, 8),
    by_name=st.booleans(),
)
def test_pages_cover_every_partition_once(sizes: list[int], limit: int, by_name: bool) -> None:
    image = image_of("x")
    for number, size in enumerate(sizes):
        image = replayed(image, image_records(f"t{number}", size))
    node = Node(image)
    names = tuple(image.topics_by_name) if by_name else ()
    seen: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    while True:
        response = page(node, *names, limit=limit, cursor=cursor)
        assert len(rows(response)) <= max(limit, 1)
        seen += rows(response)
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    everything = [
        (name, index)
        for name in sorted(image.topics_by_name)
        for index in range(len(image.topics_by_name[name].partitions))
    ]
    assert seen == everything


def image_records(name: str, partitions: int) -> tuple[Record, ...]:
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    lots = SeededRandomness(sum(name.encode()) * 100 + partitions)
    request = CreateTopicsRequest(topics=(topic,))
    return create_topics(make_configs(), cluster_of(1), request, lots).records


@pytest.mark.parametrize("cursor", [("t", -1), ("elsewhere", 0)])
def test_invalid_cursor_is_refused(cursor: tuple[str, int]) -> None:
    response = page(Node(image_of("t")), "t", cursor=cursor)
    assert [one.error_code for one in response.topics] == [ErrorCode.INVALID_REQUEST]


def test_cursor_behind_the_last_partition_continues_with_the_next_topic() -> None:
    response = page(Node(image_of("a", "b")), "a", "b", cursor=("a", 9))
    assert [one.name for one in response.topics] == ["a", "b"]
    assert rows(response) == [("b", 0), ("b", 1)]


# Settings


def describe(node: Node, kind: int, name: str, *keys: str) -> Any:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys or None
    )
    response = ask(node, ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=(resource,)))
    return response.results[0]


@pytest.mark.parametrize(
    ("kind", "name", "code", "sentence"),
    [
        (2, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (
            2,
            "",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic name is invalid: the empty string is not allowed",
        ),
        (
            4,
            "7",
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 or empty string, but received 7",
        ),
        (4, "abc", ErrorCode.INVALID_REQUEST, "Broker id must be an integer, but it is: abc"),
        (8, "7", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 7"),
        (8, "", ErrorCode.INVALID_REQUEST, "Broker id must not be empty"),
        (
            16,
            "",
            ErrorCode.INVALID_REQUEST,
            "Client metrics subscription name must not be empty",
        ),
        (32, "", ErrorCode.INVALID_REQUEST, "Group name must not be empty"),
        (
            77,
            "x",
            ErrorCode.INVALID_REQUEST,
            "This most likely occurs because of a request being malformed by the client library or "
            "the message was sent to an incompatible broker. See the broker logs for more details.",
        ),
    ],
)
def test_invalid_resources_are_refused(
    kind: int, name: str, code: ErrorCode, sentence: str
) -> None:
    result = describe(Node(image_of("t")), kind, name)
    assert (result.error_code, result.error_message, result.configs) == (code, sentence, ())


def test_each_kind_of_resource_is_described() -> None:
    node = Node(image_of("t"))
    assert len(describe(node, 2, "t").configs) == len(node.configs.topic)
    assert len(describe(node, 4, "1").configs) == len(node.configs.node)
    assert describe(node, 4, "").configs == ()
    assert [(row.name, row.value) for row in describe(node, 8, "1").configs] == [("root", "WARN")]
    assert [row.name for row in describe(node, 2, "t", "segment.ms", "foo").configs] == [
        "segment.ms"
    ]


def test_changed_setting_is_described_at_once() -> None:
    node = Node(image_of("t"))
    request = IncrementalAlterConfigsRequest(
        resources=(
            AlterConfigsResource(
                resource_type=2,
                resource_name="t",
                configs=(AlterableConfig(name="retention.ms", config_operation=0, value="5"),),
            ),
        ),
        validate_only=False,
    )
    response = ask(node, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert response.responses[0].error_code is ErrorCode.NONE
    (row,) = describe(node, 2, "t", "retention.ms").configs
    assert (row.value, row.config_source) == ("5", 1)


def test_resources_are_listed_by_type() -> None:
    image = replayed(
        image_of("t"),
        [ConfigRecord(resource_type=16, resource_name="m", name="interval.ms", value="500")],
    )
    node = Node(image)

    def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=kinds)
        response = ask(node, ApiKey.LIST_CONFIG_RESOURCES, version, request)
        return [(one.resource_type, one.resource_name) for one in response.config_resources]

    assert listed(0) == [(16, "m")]
    assert listed(1, 2) == [(2, "t")]
    assert listed(1, 4, 8) == [(4, "1"), (8, "1")]
    assert sorted(listed(1)) == [(2, "t"), (4, "1"), (8, "1"), (16, "m")]
    assert {kind for kind, _ in listed(1)} <= set(ConfigType)


# The cluster


def cluster(node: Node, **more: Any) -> Any:
    request = DescribeClusterRequest(**{"include_cluster_authorized_operations": False, **more})
    return ask(node, ApiKey.DESCRIBE_CLUSTER, 2, request)


def test_cluster_lists_its_brokers() -> None:
    node = Node(fenced(image_of("t", brokers=(1, 2)), 2))
    response = cluster(node, include_cluster_authorized_operations=True)
    assert (response.cluster_id, response.controller_id) == ("cluster-of-tests", 1)
    assert [one.broker_id for one in response.brokers] == [1]
    assert response.cluster_authorized_operations == 8096
    both = cluster(node, include_fenced_brokers=True).brokers
    assert [(one.broker_id, one.is_fenced) for one in both] == [(1, False), (2, True)]


def test_brokers_do_not_list_controllers() -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
    context = RequestContext(1, 1, "test", "127.0.0.1", "PLAINTEXT", 1)
    with pytest.raises(KafkaError) as refused:
        describe_cluster.handle(Node().services, context, request)
    assert refused.value.code is ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_broker_describes_the_quorum() -> None:
    def describe_partitions(*indexes: int, topic: str = "__cluster_metadata") -> Any:
        wanted = quorum.TopicData(
            topic_name=topic,
            partitions=tuple(quorum.PartitionData(partition_index=one) for one in indexes),
        )
        request = quorum.DescribeQuorumRequest(topics=(wanted,))
        return ask(Node(), ApiKey.DESCRIBE_QUORUM, 2, request)

    response = describe_partitions(0)
    (partition,) = response.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 4, 17)
    assert [(one.replica_id, one.log_end_offset) for one in partition.current_voters] == [(1, 17)]
    assert [one.listeners[0].port for one in response.nodes] == [9093]
    for other in (describe_partitions(1), describe_partitions(0, topic="t")):
        assert other.topics[0].partitions[0].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Producers


def init(
    node: Node,
    transaction: str | None,
    producer_id: int = -1,
    epoch: int = -1,
    timeout_ms: int = 60000,
) -> Any:
    request = InitProducerIdRequest(
        transactional_id=transaction,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
    return ask(node, ApiKey.INIT_PRODUCER_ID, 5, request)


def test_idempotent_producers_get_distinct_ids() -> None:
    node = Node()
    responses = [init(node, None), init(node, None, 5, 3)]
    assert [(one.error_code, one.producer_id, one.producer_epoch) for one in responses] == [
        (ErrorCode.NONE, 0, 0),
        (ErrorCode.NONE, 1, 0),
    ]


@pytest.mark.parametrize(
    ("transaction", "producer_id", "epoch", "code"),
    [
        ("", -1, -1, ErrorCode.INVALID_REQUEST),
        (None, 5, -1, ErrorCode.INVALID_REQUEST),
        (None, -1, 5, ErrorCode.INVALID_REQUEST),
        ("t", 5, -1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_producer_is_refused(
    transaction: str | None, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    response = init(Node(), transaction, producer_id, epoch)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)


def test_resource_named_twice_is_described_once() -> None:
    one = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    request = DescribeConfigsRequest(resources=(one,) * 200)
    for version in range(1, 5):
        (result,) = ask(Node(), ApiKey.DESCRIBE_CONFIGS, version, request).results
        assert result.configs
