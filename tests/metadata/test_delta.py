"""Replaying records: what each one changes, what it keeps, and which records are invalid."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image, LeaderRecoveryState
from riverrun.metadata.records import (
    AbortTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnknownRecord,
    UnregisterBrokerRecord,
)
from riverrun.metadata.schema.begin_transaction_record import BeginTransactionRecord
from riverrun.metadata.schema.end_transaction_record import EndTransactionRecord
from riverrun.metadata.schema.fence_broker_record import FenceBrokerRecord
from riverrun.metadata.schema.no_op_record import NoOpRecord
from riverrun.model.ids import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicName
from tests.metadata.histories import after, histories

T1, T2 = UUID(int=101), UUID(int=102)


def replayed(*records: Record, image: Image | None = None) -> tuple[Delta, Image]:
    delta = Delta(image or Image())
    for record in records:
        delta.replay(record)
    return delta, delta.publish(offset=Offset(9), epoch=LeaderEpoch(1), timestamp=0)


def partition(index: int = 0, topic: UUID = T1, **values: object) -> PartitionRecord:
    plain = PartitionRecord(
        partition_id=index,
        topic_id=topic,
        replicas=(1, 2, 3),
        isr=(1, 2),
        removing_replicas=(),
        adding_replicas=(),
        leader=1,
        leader_epoch=4,
        partition_epoch=7,
        directories=(UUID(int=1),) * 3,
        eligible_leader_replicas=(3,),
    )
    return replace(plain, **values)


def change(**values: object) -> PartitionChangeRecord:
    plain = PartitionChangeRecord(partition_id=0, topic_id=T1)
    return replace(plain, **values)


TOPIC = (TopicRecord(name="a", topic_id=T1), partition())
BROKER = RegisterBrokerRecord(
    broker_id=1, incarnation_id=UUID(int=5), broker_epoch=3, end_points=(), features=(), rack=None
)
ANOTHER_LIFE = RegisterBrokerRecord(
    broker_id=1, incarnation_id=UUID(int=99), broker_epoch=3, end_points=(), features=(), rack=None
)


def test_a_topic_is_found_by_name_and_by_id() -> None:
    delta, image = replayed(*TOPIC)
    topic = image.topics_by_name[TopicName("a")]
    assert image.topics_by_id[topic.id] is topic
    assert image.partition(TopicName("a"), PartitionIndex(0)) is topic.partitions[0]
    assert image.partition(TopicName("a"), PartitionIndex(1)) is None
    assert image.partition(TopicName("b"), PartitionIndex(0)) is None
    assert list(delta.changed_topics) == [T1]


def test_partitions_may_come_in_any_order() -> None:
    _, image = replayed(TOPIC[0], partition(1, leader_epoch=9), partition(0))
    epochs = [part.leader_epoch for part in image.topics_by_name[TopicName("a")].partitions]
    assert epochs == [4, 9]


def test_one_change_leaves_the_rest_of_the_image_shared() -> None:
    _, image = replayed(*TOPIC, TopicRecord(name="b", topic_id=T2), partition(topic=T2), BROKER)
    delta, changed = replayed(change(isr=(1,)), image=image)
    assert changed.brokers is image.brokers
    assert changed.configs is image.configs
    assert changed.topics_by_name[TopicName("b")] is image.topics_by_name[TopicName("b")]
    assert changed.topics_by_name[TopicName("a")].partitions[0].isr == (1,)
    assert image.topics_by_name[TopicName("a")].partitions[0].isr == (1, 2)
    assert list(delta.changed_topics) == [T1]


def test_naming_a_leader_starts_an_epoch_even_for_the_same_leader() -> None:
    _, image = replayed(*TOPIC)
    for record, leader, epoch in (
        (change(isr=(1,)), 1, 4),
        (change(leader=1), 1, 5),
        (change(leader=2), 2, 5),
        (change(leader=-1), -1, 5),
    ):
        _, after_it = replayed(record, image=image)
        part = after_it.topics_by_name[TopicName("a")].partitions[0]
        assert (part.leader, part.leader_epoch, part.partition_epoch) == (leader, epoch, 8)


def test_a_change_keeps_fields_it_does_not_name() -> None:
    _, image = replayed(*TOPIC)
    before = image.topics_by_name[TopicName("a")].partitions[0]
    _, changed = replayed(change(leader_recovery_state=1), image=image)
    recovering = changed.topics_by_name[TopicName("a")].partitions[0]
    assert recovering == replace(
        before, leader_recovery_state=LeaderRecoveryState.RECOVERING, partition_epoch=8
    )


def test_removing_a_topic_removes_its_settings() -> None:
    config = ConfigRecord(resource_type=2, resource_name="a", name="x", value="1")
    other = ConfigRecord(resource_type=4, resource_name="a", name="x", value="1")
    _, image = replayed(*TOPIC, config, other)
    delta, removed = replayed(RemoveTopicRecord(topic_id=T1), image=image)
    assert not removed.topics_by_id and not removed.topics_by_name
    assert removed.config(ConfigType.TOPIC, "a") == {}
    assert removed.config(ConfigType.BROKER, "a") == {"x": "1"}
    assert delta.deleted_topics == {T1: image.topics_by_id[T1]}  # type: ignore[index]
    assert list(delta.changed_configs) == [(ConfigType.TOPIC, "a")]


def test_a_topic_recreated_in_one_delta_has_a_new_id() -> None:
    _, image = replayed(*TOPIC)
    again = (TopicRecord(name="a", topic_id=T2), partition(topic=T2))
    delta, made = replayed(RemoveTopicRecord(topic_id=T1), *again, image=image)
    assert made.topics_by_name[TopicName("a")].id == T2
    assert list(delta.deleted_topics) == [T1]
    assert list(delta.changed_topics) == [T2]


def test_settings_are_set_replaced_and_deleted() -> None:
    def config(name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=4, resource_name="", name=name, value=value)

    _, image = replayed(config("a", "1"), config("b", "2"), config("a", "3"), config("b", None))
    assert image.config(ConfigType.BROKER, "") == {"a": "3"}
    _, image = replayed(config("a", None), image=image)
    assert image.configs == {}


def test_a_broker_is_fenced_unfenced_and_shut_down() -> None:
    _, image = replayed(BROKER)
    assert not image.is_active(NodeId(1))
    unfence = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=3, fenced=-1)
    _, image = replayed(unfence, image=image)
    assert image.is_active(NodeId(1))
    shut = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=3, in_controlled_shutdown=1)
    delta, down = replayed(shut, image=image)
    assert not down.is_active(NodeId(1)) and not down.brokers[NodeId(1)].is_fenced
    assert list(delta.changed_brokers) == [1]
    _, fenced = replayed(FenceBrokerRecord(id=1, epoch=3), image=image)
    assert fenced.brokers[NodeId(1)].is_fenced
    _, gone = replayed(UnregisterBrokerRecord(broker_id=1, broker_epoch=3), image=image)
    assert not gone.brokers


def test_clearing_eligible_leaders_changes_only_partitions_that_have_some() -> None:
    plain = partition(1, eligible_leader_replicas=None)
    _, image = replayed(*TOPIC, plain)
    _, cleared = replayed(ClearElrRecord(topic_name=""), image=image)
    first, second = cleared.topics_by_name[TopicName("a")].partitions
    assert (first.elr, first.partition_epoch) == ((), 8)
    assert second is image.topics_by_name[TopicName("a")].partitions[1]


def test_a_transaction_takes_effect_when_it_ends_or_not_at_all() -> None:
    begin, end, abort = BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()
    delta, image = replayed(begin, *TOPIC)
    assert delta.is_in_transaction and not image.topics_by_name
    _, image = replayed(begin, *TOPIC, end)
    assert list(image.topics_by_name) == ["a"]
    _, image = replayed(begin, *TOPIC, abort, TopicRecord(name="a", topic_id=T2))
    assert image.topics_by_name[TopicName("a")].id == T2


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ((TopicRecord(name="a", topic_id=T2),), "topic a exists"),
        ((TopicRecord(name="b", topic_id=T1),), "topic id .* exists"),
        ((TopicRecord(name="b", topic_id=None),), "without an id"),
        ((partition(),), "the partition exists"),
        ((partition(2),), "has holes"),
        ((partition(-1),), "negative index"),
        ((partition(topic=T2),), "there is no topic"),
        ((partition(1, isr=(1, 9)),), "ISR outside"),
        ((partition(1, isr=(1, 1)),), "in-sync replica twice"),
        ((partition(1, replicas=(1, 1, 2)),), "a replica twice"),
        ((partition(1, replicas=(), isr=(), directories=()),), "no replicas"),
        ((partition(1, leader=3),), "leader not in"),
        ((partition(1, eligible_leader_replicas=(1,)),), "in ISR and ELR"),
        ((partition(1, eligible_leader_replicas=(9,)),), "ELR outside"),
        ((partition(1, directories=(UUID(int=1),)),), "directories do not match"),
        ((partition(1, leader_epoch=-1),), "negative leader epoch"),
        ((partition(1, adding_replicas=(8,)),), "reassigned but no replica"),
        ((change(partition_id=1),), "no such partition"),
        ((change(topic_id=T2),), "there is no topic"),
        ((change(isr=(2,)),), "leader not in"),
        ((change(isr=(1, 2, 3)),), "in ISR and ELR"),
        ((RemoveTopicRecord(topic_id=T2),), "there is no topic"),
        ((ClearElrRecord(topic_name="b"),), "there is no topic"),
        ((ANOTHER_LIFE,), "epoch not above 3"),
        ((UnregisterBrokerRecord(broker_id=1, broker_epoch=2),), "is not of epoch 3"),
        ((UnregisterBrokerRecord(broker_id=2, broker_epoch=2),), "not registered"),
        ((BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9),), "not of epoch"),
        (
            (BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=3, fenced=2),),
            "no such number",
        ),
        ((ProducerIdsRecord(broker_id=1, next_producer_id=1000),), "producer ids go back"),
        ((FeatureLevelRecord(name="x", feature_level=-1),), "negative level"),
        ((EndTransactionRecord(),), "ends no transaction"),
        ((BeginTransactionRecord(), BeginTransactionRecord()), "inside another"),
    ],
)
def test_records_that_cannot_follow_are_rejected(records: tuple[Record, ...], says: str) -> None:
    producers = ProducerIdsRecord(broker_id=1, next_producer_id=1000)
    _, image = replayed(*TOPIC, BROKER, producers)
    with pytest.raises(AssertionError, match=says):
        replayed(*records, image=image)


def test_metadata_of_a_newer_kafka_is_rejected_with_the_remedy() -> None:
    with pytest.raises(UnknownRecord, match="start a newer riverrun"):
        replayed(FeatureLevelRecord(name="metadata.version", feature_level=31))


def test_no_op_records_change_nothing() -> None:
    _, image = replayed(*TOPIC)
    _, same = replayed(NoOpRecord(), image=image)
    assert replace(same, offset=image.offset) == image


@settings(deadline=None, max_examples=25)
@given(histories(), st.data())
def test_replay_in_one_or_many_deltas_gives_the_same_image(
    history: list[list[Record]], data: st.DataObject
) -> None:
    stepwise = Image()
    for step in history:
        stepwise = after(stepwise, step)
    records = [record for step in history for record in step]
    whole = after(Image(), records) if records else Image()
    assert replace(whole, epoch=stepwise.epoch) == stepwise
    assert list(whole.topics_by_name) == list(stepwise.topics_by_name)
    assert list(whole.configs) == list(stepwise.configs)
