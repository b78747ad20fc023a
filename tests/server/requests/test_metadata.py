"""Metadata: every version, cached bytes, and topics that are created by the request."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from riverrun.cluster.topics.create_topics import create_topics
from riverrun.metadata.image import Endpoint, Image
from riverrun.metadata.records import BrokerRegistrationChangeRecord
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId, TopicName
from riverrun.ports.aio import Yielder
from riverrun.server.dispatch.broker_visibility import LISTED_AFTER_FENCING_SECONDS
from riverrun.server.dispatch.image_waits import ImageWaits
from riverrun.server.requests import metadata as handler
from riverrun.wire.apis import APIS, ApiKey
from riverrun.wire.codec import encode_element, encode_response, join_response
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from riverrun.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.cluster.fakes import SeededRandomness, cluster_of, make_configs, replayed
from tests.server.requests.admin_node import Node

API = ApiKey.METADATA
VERSIONS = range(APIS[API].min_version, APIS[API].max_version + 1)


def image_of(*names: str, brokers: tuple[int, ...] = (1,), partitions: int = 2) -> Image:
    image = cluster_of(*brokers)
    topics = tuple(
        CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=len(brokers),
            assignments=(),
            configs=(),
        )
        for name in names
    )
    request = CreateTopicsRequest(topics=topics)
    outcome = create_topics(make_configs(), image, request, SeededRandomness())
    return replayed(image, outcome.records)


def names(*wanted: str | None, ids: tuple[UUID, ...] = (), **more: bool) -> MetadataRequest:
    by_name = tuple(MetadataRequestTopic(name=name) for name in wanted)
    by_id = tuple(MetadataRequestTopic(name=None, topic_id=one) for one in ids)
    return MetadataRequest(topics=by_name + by_id, **more)


ALL = MetadataRequest(topics=None)


def ask(node: Node, version: int, request: MetadataRequest, **more: Any) -> MetadataResponse:
    response: MetadataResponse = asyncio.run(node.ask(API, version, request, **more))
    return response


def codes(response: MetadataResponse) -> list[tuple[str | None, ErrorCode]]:
    return [(topic.name, topic.error_code) for topic in response.topics]


# Joined responses

partition_rows = st.builds(
    MetadataResponsePartition,
    error_code=st.just(ErrorCode.NONE),
    partition_index=st.integers(0, 9),
    leader_id=st.integers(-1, 9),
    replica_nodes=st.tuples(st.integers(0, 9)),
)
topic_rows = st.builds(
    MetadataResponseTopic,
    error_code=st.sampled_from([ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]),
    name=st.text(max_size=5),
    partitions=st.lists(partition_rows, max_size=3).map(tuple),
    is_internal=st.booleans(),
    topic_id=st.uuids(),
)
responses = st.builds(
    MetadataResponse,
    brokers=st.lists(
        st.builds(
            MetadataResponseBroker,
            node_id=st.integers(0, 9),
            host=st.text(max_size=5),
            port=st.integers(0, 65535),
            rack=st.none() | st.text(max_size=3),
        ),
        max_size=3,
    ).map(tuple),
    topics=st.lists(topic_rows, max_size=4).map(tuple),
    controller_id=st.integers(-1, 9),
    cluster_id=st.text(max_size=9),
)


@given(st.sampled_from(VERSIONS), responses)
def test_joined_topics_equal_the_response_encoded_at_once(
    version: int, response: MetadataResponse
) -> None:
    elements = [encode_element(API, version, topic) for topic in response.topics]
    joined = join_response(API, version, replace(response, topics=()), "topics", elements)
    assert joined == encode_response(API, version, response)


def test_joined_response_counts_more_topics_than_fit_in_one_byte() -> None:
    node = Node(image_of(*(f"t{number}" for number in range(300)), partitions=1))
    for version in (8, 12):
        assert len(ask(node, version, ALL).topics) == 300


# Responses


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_describes_a_topic(version: int) -> None:
    node = Node(image_of("t"))
    response = ask(node, version, names("t"))
    (topic,) = response.topics
    assert (topic.name, topic.error_code) == ("t", ErrorCode.NONE)
    assert [one.leader_id for one in topic.partitions] == [1, 1]
    assert [(one.node_id, one.host, one.port) for one in response.brokers] == [(1, "host1", 9092)]
    if version >= 10:
        assert topic.topic_id == node.log.current.topics_by_name[TopicName("t")].id
    if version >= 2:
        assert response.cluster_id == "cluster-of-tests"
    if version >= 1:
        assert response.controller_id == 1


def test_empty_list_means_all_topics_only_in_version_0() -> None:
    node = Node(image_of("a", "b"))
    assert codes(ask(node, 0, names())) == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
    assert codes(ask(node, 1, names())) == []
    assert codes(ask(node, 13, names())) == []
    assert len(ask(node, 13, ALL).topics) == 2


def test_unknown_and_invalid_names_come_after_existing_topics() -> None:
    node = Node(image_of("a", "b"))
    response = ask(
        node, 13, names("zz", "b", "bad name", "a", "b", allow_auto_topic_creation=False)
    )
    assert codes(response) == [
        ("b", ErrorCode.NONE),
        ("a", ErrorCode.NONE),
        ("zz", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


def test_topics_are_found_by_id() -> None:
    node = Node(image_of("a", "b"))
    known = node.log.current.topics_by_name[TopicName("b")].id
    response = ask(node, 12, names("a", ids=(UUID(int=5), known)))
    assert codes(response) == [(None, ErrorCode.UNKNOWN_TOPIC_ID), ("b", ErrorCode.NONE)]


def test_ids_are_refused_before_version_12() -> None:
    response = ask(Node(), 11, names(ids=(UUID(int=5),)))
    assert [(one.error_code, one.topic_id) for one in response.topics] == [
        (ErrorCode.INVALID_REQUEST, UUID(int=5))
    ]
    assert response.brokers == ()


def test_authorized_operations_are_sent_on_request() -> None:
    node = Node(image_of("t"))
    plain = ask(node, 10, names("t"))
    requested = ask(
        node,
        10,
        names(
            "t",
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        ),
    )
    again = ask(node, 10, names("t"))
    assert requested.topics[0].topic_authorized_operations == 3576
    assert requested.cluster_authorized_operations == 8096
    assert plain == again
    assert plain.topics[0].topic_authorized_operations == -(2**31)
    assert plain.cluster_authorized_operations == -(2**31)


def test_internal_topics_are_marked() -> None:
    node = Node(image_of("__consumer_offsets", "t"))
    assert [one.is_internal for one in ask(node, 13, ALL).topics] == [True, False]


def fenced(image: Image, node: int) -> Image:
    epoch = image.brokers[NodeId(node)].epoch
    record = BrokerRegistrationChangeRecord(broker_id=node, broker_epoch=epoch, fenced=1)
    return replayed(image, [record])


def test_replicas_on_fenced_brokers_are_offline() -> None:
    image = fenced(image_of("t", brokers=(1, 2), partitions=1), 2)
    partition = image.topics_by_name[TopicName("t")].partitions[0]
    led_by_two = partition.leader == 2
    node = Node(image)
    newest = ask(node, 13, names("t")).topics[0].partitions[0]
    assert newest.offline_replicas == (2,)
    assert set(newest.replica_nodes) == {1, 2}
    expected = ErrorCode.LEADER_NOT_AVAILABLE if led_by_two else ErrorCode.NONE
    assert newest.error_code is expected
    oldest = ask(node, 0, names("t")).topics[0].partitions[0]
    assert oldest.replica_nodes == (1,)
    assert oldest.error_code is (expected or ErrorCode.REPLICA_NOT_AVAILABLE)


def test_leader_without_the_listener_is_not_named() -> None:
    node = Node(image_of("t", partitions=1))
    partition = ask(node, 13, names("t"), listener="OTHER").topics[0].partitions[0]
    assert (partition.leader_id, partition.error_code) == (-1, ErrorCode.LISTENER_NOT_FOUND)
    assert ask(node, 5, names("t"), listener="OTHER").topics[0].partitions[0].error_code is (
        ErrorCode.LEADER_NOT_AVAILABLE
    )


# Topics created by the request


def test_requested_topic_is_created_and_described() -> None:
    node = Node(given={"num.partitions": "3"})
    response = ask(node, 13, names("new", "bad name"))
    assert codes(response) == [
        ("new", ErrorCode.NONE),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert len(response.topics[0].partitions) == 3


@pytest.mark.parametrize(
    ("given", "allowed"), [({"auto.create.topics.enable": "false"}, True), ({}, False)]
)
def test_topics_are_created_only_if_node_and_client_allow_it(
    given: dict[str, str], allowed: bool
) -> None:
    node = Node(given=given)
    response = ask(node, 13, names("new", allow_auto_topic_creation=allowed))
    assert codes(response) == [("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert node.log.appended == []


def test_request_for_all_topics_creates_none() -> None:
    node = Node()
    ask(node, 13, ALL)
    assert node.log.appended == []


def test_topic_that_cannot_be_created_is_unknown() -> None:
    node = Node(image_of("a.b"), given={"default.replication.factor": "3"})
    assert codes(ask(node, 13, names("a_b", "c"))) == [
        ("a_b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_internal_topics_are_created_with_their_own_settings() -> None:
    node = Node()
    response = ask(
        node, 13, names("__consumer_offsets", "__transaction_state", "__share_group_state")
    )
    assert codes(response) == [
        ("__consumer_offsets", ErrorCode.NONE),
        ("__transaction_state", ErrorCode.NONE),
        ("__share_group_state", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert len(response.topics[0].partitions) == 50
    settings = node.configs.log_settings(node.log.current, "__consumer_offsets")
    assert settings.cleanup_policy == ("compact",)
    assert settings.segment_bytes == 104857600
    settings = node.configs.log_settings(node.log.current, "__transaction_state")
    assert settings.cleanup_policy == ("compact",)
    assert settings.compression_type == "uncompressed"
    assert settings.min_insync_replicas == 1  # it has one replica


# Cached bytes


def test_response_about_all_topics_is_cached_until_the_image_changes() -> None:
    node = Node(image_of("a", "b"))
    first = asyncio.run(node.written(API, 12, ALL))
    assert asyncio.run(node.written(API, 12, ALL)) is first
    node.log.current = image_of("a", "b", "c")
    assert len(ask(node, 12, ALL).topics) == 3


def test_only_a_changed_topic_is_encoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(image_of("a", "b", partitions=1))
    ask(node, 12, ALL)
    encoded: list[MetadataResponseTopic] = []

    def counting(key: ApiKey, version: int, topic: MetadataResponseTopic) -> bytes:
        encoded.append(topic)
        return encode_element(key, version, topic)

    monkeypatch.setattr(handler, "encode_element", counting)
    image = node.log.current
    topic = image.topics_by_name[TopicName("b")]
    changed = replace(topic, partitions=topic.partitions * 2)
    node.log.current = replace(image, topics_by_name={**image.topics_by_name, topic.name: changed})
    response = ask(node, 12, ALL)
    assert [len(one.partitions) for one in response.topics] == [1, 2]
    assert [topic.name for topic in encoded] == ["b"]


def test_change_of_brokers_invalidates_every_topic() -> None:
    image = image_of("t", brokers=(1, 2), partitions=1)
    node = Node(image)
    assert ask(node, 13, ALL).topics[0].partitions[0].offline_replicas == ()
    node.log.current = fenced(image, 2)
    assert ask(node, 13, ALL).topics[0].partitions[0].offline_replicas == (2,)


def test_fenced_broker_stays_listed_for_some_seconds() -> None:
    """librdkafka drops a broker that is not listed together with partitions that it is moving."""
    image = image_of("t", brokers=(1, 2), partitions=1)
    node = Node(image)
    assert [broker.node_id for broker in ask(node, 13, ALL).brokers] == [1, 2]
    fence(node, 2, now=100.0)
    response = ask(node, 13, ALL)
    assert [broker.node_id for broker in response.brokers] == [1, 2]
    assert response.topics[0].partitions[0].offline_replicas == (2,)
    node.services.clock.monotonic = lambda: 100.1 + LISTED_AFTER_FENCING_SECONDS
    assert [broker.node_id for broker in ask(node, 13, ALL).brokers] == [1]


def test_fenced_broker_stays_listed_by_a_node_that_was_never_asked_before() -> None:
    """Clients of a dead broker turn to nodes that they have not spoken to before."""
    node = Node(image_of("t", brokers=(1, 2), partitions=1))
    fence(node, 2, now=100.0)
    assert [broker.node_id for broker in ask(node, 13, ALL).brokers] == [1, 2]


def test_broker_that_registers_again_stays_listed_until_it_is_unfenced() -> None:
    node = Node(image_of("t", brokers=(1, 2), partitions=1))
    fence(node, 2, now=100.0)
    now = 101.0 + LISTED_AFTER_FENCING_SECONDS
    node.services.clock.monotonic = lambda: now
    assert [broker.node_id for broker in ask(node, 13, ALL).brokers] == [1]
    image = node.log.current
    again = replace(image.brokers[NodeId(2)], epoch=image.brokers[NodeId(2)].epoch + 1)
    node.log.current = replace(image, brokers={**image.brokers, NodeId(2): again})
    node.services.broker_visibility.published(None, node.log.current)
    assert [broker.node_id for broker in ask(node, 13, ALL).brokers] == [1, 2]


def test_fenced_broker_lists_itself() -> None:
    """It serves clients a moment before the controller unfences it."""
    node = Node(fenced(image_of("t", brokers=(1, 2), partitions=1), 1))
    assert [broker.node_id for broker in ask(node, 13, ALL).brokers] == [1, 2]


def fence(node: Node, broker: int, *, now: float) -> None:
    """Publish an image in which the broker is fenced."""
    node.services.clock.monotonic = lambda: now
    node.log.current = fenced(node.log.current, broker)
    node.services.broker_visibility.published(None, node.log.current)


def test_response_waits_for_the_successor_of_a_lost_leader() -> None:
    image = image_of("t", brokers=(1, 2), partitions=2)
    node = Node(image)
    node.services.image_waits = ImageWaits(lambda: node.log.current)
    now = 100.0
    node.services.clock = SimpleNamespace(monotonic=lambda: now)
    topic = image.topics_by_name[TopicName("t")]
    dead = topic.partitions[0].leader
    node.services.broker_visibility.leader_lost(dead, now)
    moved = tuple(
        replace(one, leader=NodeId(3 - dead), leader_epoch=one.leader_epoch + 1)
        for one in topic.partitions
    )
    elected = replace(
        image, topics_by_name={topic.name: replace(topic, partitions=moved)}, topics_by_id={}
    )

    async def scenario() -> list[int]:
        asking = asyncio.ensure_future(node.ask(API, 12, names("t")))
        await asyncio.sleep(0)
        assert not asking.done()
        node.log.current = elected
        node.services.image_waits.published(None, elected)
        return [one.leader_id for one in (await asking).topics[0].partitions]

    assert asyncio.run(scenario()) == [3 - dead, 3 - dead]


def test_broker_fenced_before_the_start_is_not_listed() -> None:
    node = Node(fenced(image_of("t", brokers=(1, 2), partitions=1), 2))
    assert [broker.node_id for broker in ask(node, 13, ALL).brokers] == [1]


def test_each_listener_has_its_own_response() -> None:
    image = image_of("t")
    broker = image.brokers[NodeId(1)]
    endpoints = {**broker.endpoints, "INSIDE": Endpoint(host="inside", port=7)}
    brokers = {NodeId(1): replace(broker, endpoints=endpoints)}
    node = Node(replace(image, brokers=brokers))
    assert ask(node, 12, ALL).brokers[0].host == "host1"
    assert ask(node, 12, ALL, listener="INSIDE").brokers[0].host == "inside"


def test_large_response_is_encoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(image_of(*(f"t{number}" for number in range(50)), partitions=3))
    whole = ask(node, 12, ALL)
    monkeypatch.setattr(handler, "SLICE_PARTITIONS", 20)
    monkeypatch.setattr(handler, "Yielder", partial(Yielder, steps_max=5))
    sliced = Node(node.log.current)

    async def count_iterations() -> tuple[int, Any]:
        iterations = 0
        task = asyncio.ensure_future(sliced.ask(API, 12, ALL))
        while not task.done():
            await asyncio.sleep(0)
            iterations += 1
        return iterations, task.result()

    iterations, response = asyncio.run(count_iterations())
    assert response == whole
    assert iterations >= 10
