"""Brokers that come up: once, and again after a crash."""

from riverrun.cluster.activation import activate
from riverrun.cluster.registration import register_broker
from riverrun.metadata.image import NO_LEADER, ConfigType, Image, PartitionImage
from riverrun.metadata.records import PartitionChangeRecord
from riverrun.model.ids import NodeId, TopicName
from tests.cluster.fakes import cluster_of, make_configs, registration, replayed
from tests.cluster.test_partitions import image_of

NODE = NodeId(1)


def test_a_broker_is_registered_and_may_lead_at_once() -> None:
    image = cluster_of(1)
    outcome = register_broker(image, registration(2, rack="b"))
    after = replayed(image, outcome.records)
    assert after.is_active(NodeId(2))
    assert after.brokers[NodeId(2)].rack == "b"
    assert after.brokers[NodeId(2)].epoch == outcome.response


def test_a_new_incarnation_has_a_greater_epoch() -> None:
    image = cluster_of(1)
    outcome = register_broker(image, registration(1, incarnation=2))
    assert outcome.response > image.brokers[NODE].epoch
    assert replayed(image, outcome.records).brokers[NODE].epoch == outcome.response


def test_the_same_incarnation_changes_nothing() -> None:
    image = cluster_of(1)
    outcome = register_broker(image, registration(1))
    assert (outcome.records, outcome.response) == ((), image.brokers[NODE].epoch)


def test_a_new_incarnation_leads_in_a_new_epoch() -> None:
    image = image_of("t")
    after = replayed(image, register_broker(image, registration(1, incarnation=2)).records)
    for old, new in zip(partitions(image), partitions(after), strict=True):
        assert (new.leader, new.isr) == (1, old.isr)
        assert new.leader_epoch == old.leader_epoch + 1


def test_a_broker_takes_up_only_what_it_leads() -> None:
    image = image_of("t", brokers=(1, 2, 3), replicas=2)
    outcome = register_broker(image, registration(2, incarnation=2))
    taken = [r.partition_id for r in outcome.records if isinstance(r, PartitionChangeRecord)]
    assert taken == [index for index, one in enumerate(partitions(image)) if one.leader == 2]


def test_a_partition_without_leader_is_led_by_whoever_was_in_sync() -> None:
    image = image_of("t")
    topic = image.topics_by_name[TopicName("t")].id
    image = replayed(
        image, [PartitionChangeRecord(partition_id=0, topic_id=topic, leader=NO_LEADER)]
    )
    after = replayed(image, register_broker(image, registration(1, incarnation=2)).records)
    assert [one.leader for one in partitions(after)] == [1, 1]


def test_an_eligible_replica_leads_when_nobody_is_in_sync() -> None:
    image = image_of("t")
    topic = image.topics_by_name[TopicName("t")].id
    image = replayed(
        image,
        [
            PartitionChangeRecord(
                partition_id=0,
                topic_id=topic,
                leader=NO_LEADER,
                isr=(),
                eligible_leader_replicas=(1,),
            )
        ],
    )
    after = partitions(
        replayed(image, register_broker(image, registration(1, incarnation=2)).records)
    )[0]
    assert (after.leader, after.isr, after.elr) == (1, (1,), ())


def test_the_clusters_min_insync_replicas_is_a_record() -> None:
    configs = make_configs({"min.insync.replicas": "2"})
    image = cluster_of(1)
    after = replayed(image, activate(configs, image).records)
    assert after.config(ConfigType.BROKER, "") == {"min.insync.replicas": "2"}
    assert activate(configs, after).records == ()


def partitions(image: Image) -> tuple[PartitionImage, ...]:
    return image.topics_by_name[TopicName("t")].partitions
