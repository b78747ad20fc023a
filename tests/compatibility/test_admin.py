"""confluent-kafka's admin client: topics, settings, records, groups and offsets."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.compatibility.confluent import (
    consumer,
    offset_of,
    producer,
    read,
    read_partition,
    send,
    wait_for,
)
from tests.compatibility.conftest import MakeTopic
from tests.processes import Server, until

SECONDS_MAX = 20


@pytest.fixture
def admin(server: Server) -> Iterator[AdminClient]:
    yield AdminClient({"bootstrap.servers": server.bootstrap})


def test_topics_can_be_created_described_and_deleted(
    admin: AdminClient, make_name: Callable[[], str]
) -> None:
    name = make_name()
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "60000"})])[name].result(
        SECONDS_MAX
    )
    until(lambda: name in _listed(admin), seconds=SECONDS_MAX, what="the topic is listed")
    described = admin.describe_topics(TopicCollection([name]))[name].result(SECONDS_MAX)
    assert [row.id for row in described.partitions] == [0, 1, 2]
    assert all(row.leader.id == 1 and len(row.isr) == 1 for row in described.partitions)
    assert _refusal(admin.create_topics([NewTopic(name, 1, 1)])[name]) == "TOPIC_ALREADY_EXISTS"
    admin.delete_topics([name])[name].result(SECONDS_MAX)
    until(lambda: name not in _listed(admin), seconds=SECONDS_MAX, what="the topic is gone")
    assert _refusal(admin.delete_topics([name])[name]) == "UNKNOWN_TOPIC_OR_PART"


def test_invalid_topics_are_rejected_individually(
    admin: AdminClient, make_name: Callable[[], str]
) -> None:
    good, bad_config, bad_factor = make_name(), make_name(), make_name()
    responses = admin.create_topics(
        [
            NewTopic(good, 1, 1),
            NewTopic("not a name", 1, 1),
            NewTopic(bad_config, 1, 1, config={"retention.ms": "soon"}),
            NewTopic(bad_factor, 1, 7),
        ]
    )
    responses[good].result(SECONDS_MAX)
    assert _refusal(responses["not a name"]) == "TOPIC_EXCEPTION"
    assert _refusal(responses[bad_config]) == "INVALID_CONFIG"
    assert _refusal(responses[bad_factor]) == "INVALID_REPLICATION_FACTOR"


def test_partitions_can_be_added(admin: AdminClient, server: Server, make_topic: MakeTopic) -> None:
    name = make_topic()
    admin.create_partitions([NewPartitions(name, 4)])[name].result(SECONDS_MAX)
    until(
        lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 4,
        seconds=SECONDS_MAX,
        what="four partitions",
    )
    assert send(server.bootstrap, name, [b"x"], partition=3)[0].offset() == 0
    assert _refusal(admin.create_partitions([NewPartitions(name, 2)])[name]) == "INVALID_PARTITIONS"


def test_topic_settings_can_be_changed(admin: AdminClient, make_topic: MakeTopic) -> None:
    name = make_topic()
    resource = ConfigResource(ResourceType.TOPIC, name)
    before = _described(admin, resource)
    assert ConfigSource(before["retention.ms"].source) is ConfigSource.DEFAULT_CONFIG
    assert {"cleanup.policy", "compression.type", "max.message.bytes"} <= before.keys()
    changed = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry(
                "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
            ),
        ],
    )
    admin.incremental_alter_configs([changed])[changed].result(SECONDS_MAX)
    until(
        lambda: _described(admin, resource)["retention.ms"].value == "12345",
        seconds=SECONDS_MAX,
        what="the new retention",
    )
    after = _described(admin, resource)
    assert ConfigSource(after["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert after["cleanup.policy"].value == "delete,compact"


def test_settings_of_the_broker_are_listed(admin: AdminClient) -> None:
    rows = _described(admin, ConfigResource(ResourceType.BROKER, "1"))
    assert rows["log.retention.hours"].value == "168"
    assert rows["num.partitions"].is_default
    assert not rows["log.cleaner.backoff.ms"].is_read_only
    assert rows["node.id"].is_read_only
    assert len(rows) > 80


def test_deleted_records_are_not_readable(
    admin: AdminClient, server: Server, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    send(server.bootstrap, topic, [b"%d" % number for number in range(50)])
    wanted = TopicPartition(topic, 0, 30)
    deleted = admin.delete_records([wanted])[TopicPartition(topic, 0)].result(SECONDS_MAX)
    assert deleted.low_watermark == 30
    with consumer(server.bootstrap, topic) as reader:
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (30, 50)
        reader.assign([TopicPartition(topic, 0, 0)])
        assert [message.offset() for message in read(reader, 20)] == list(range(30, 50))
    beyond = TopicPartition(topic, 0, 99)
    refused = admin.delete_records([beyond])[TopicPartition(topic, 0)]
    assert _refusal(refused) == "OFFSET_OUT_OF_RANGE"


def test_offsets_are_listed_by_kind(
    admin: AdminClient, server: Server, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    send(server.bootstrap, topic, [b"a", b"b", b"c"])
    place = TopicPartition(topic, 0)
    for spec, offset in [
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 3),
        (OffsetSpec.for_timestamp(0), 0),
    ]:
        assert admin.list_offsets({place: spec})[place].result(SECONDS_MAX).offset == offset
    newest = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(SECONDS_MAX)
    assert newest.offset in (0, 1, 2)


def test_groups_are_listed_described_and_deleted(
    admin: AdminClient, server: Server, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    group = f"{topic}-group"
    with consumer(server.bootstrap, group, client_id="watched") as reader:
        reader.subscribe([topic])
        wait_for([reader], lambda: len(reader.assignment()) == 2, "the member owns all")
        seen = _group(admin, group)
        assert seen.state == ConsumerGroupState.STABLE
        (member,) = seen.members
        assert member.client_id == "watched"
        assert {row.partition for row in member.assignment.topic_partitions} == {0, 1}
        assert _refusal(admin.delete_consumer_groups([group])[group]) == "NON_EMPTY_GROUP"
        listed = admin.list_consumer_groups().result(SECONDS_MAX).valid
        assert group in {row.group_id for row in listed}
        reader.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    assert _group(admin, group).state == ConsumerGroupState.EMPTY
    offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([offsets])[group].result(SECONDS_MAX)
    wanted = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([wanted])[group].result(SECONDS_MAX)
    assert [(row.partition, row.offset) for row in found.topic_partitions] == [(0, 3)]
    admin.delete_consumer_groups([group])[group].result(SECONDS_MAX)
    listed = admin.list_consumer_groups().result(SECONDS_MAX).valid
    assert group not in {row.group_id for row in listed}


def test_cluster_can_be_described(admin: AdminClient, server: Server) -> None:
    cluster = admin.describe_cluster().result(SECONDS_MAX)
    assert cluster.cluster_id
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == server.bootstrap


def test_compaction_keeps_the_newest_of_each_key(server: Server, make_topic: MakeTopic) -> None:
    """The log is compacted in the background and keeps the newest value of each key."""
    topic = make_topic(
        configs={
            "cleanup.policy": "compact",
            "segment.ms": "200",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "300",
            "segment.bytes": "1048576",
        }
    )
    sender = producer(server.bootstrap)
    for number in range(300):
        sender.produce(topic, b"%d" % number, b"key-%d" % (number % 10))
    sender.flush(30)

    def is_compacted() -> bool:
        sender.produce(topic, b"x", b"other")
        sender.flush(10)
        with consumer(server.bootstrap, topic) as reader:
            reader.assign([TopicPartition(topic, 0, 0)])
            first = read(reader, 1)[0]
        return offset_of(first) >= 290

    until(is_compacted, seconds=50, what="the log is compacted")
    found = read_partition(server.bootstrap, topic, 10)
    assert [message.value() for message in found] == [b"%d" % number for number in range(290, 300)]


def _listed(admin: AdminClient) -> set[str]:
    return set(admin.list_topics(timeout=SECONDS_MAX).topics)


def _described(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    rows: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
    return rows


def _group(admin: AdminClient, group: str) -> Any:
    return admin.describe_consumer_groups([group])[group].result(SECONDS_MAX)


def _refusal(future: Any) -> str:
    """The name of the error of a rejected request."""
    with pytest.raises(KafkaException) as failure:
        future.result(SECONDS_MAX)
    error: KafkaError = failure.value.args[0]
    return str(error.name())
