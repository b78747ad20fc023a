"""Valid histories: records drawn so that each is valid after the previous image."""

from uuid import UUID

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image, PartitionImage, TopicImage
from riverrun.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord, EntityData
from riverrun.metadata.schema.remove_access_control_entry_record import (
    RemoveAccessControlEntryRecord,
)
from riverrun.model.ids import LeaderEpoch, Offset

ids = st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))
nodes = st.integers(0, 4)
names = st.sampled_from(["a", "b", "c", "d"])


def subsets(items: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    if not items:
        return st.just(())
    return st.lists(st.sampled_from(items), unique=True, max_size=len(items)).map(tuple)


@st.composite
def steps(draw: DrawFn, image: Image) -> list[Record]:
    """One batch: records that are valid together after the image."""
    moves = [_feature, _broker, _controller, _config, _producer_ids, _entry]
    if len(image.topics_by_name) < 4:
        moves.append(_topic)
    if image.topics_by_name:
        moves += [_remove_topic, _more_partitions, _clear_elr]
    if any(topic.partitions for topic in image.topics_by_name.values()):
        moves += [_change, _change]
    if image.brokers:
        moves += [_broker_change, _unregister]
    return draw(st.sampled_from(moves))(draw, image)


@st.composite
def histories(draw: DrawFn, max_steps: int = 12) -> list[list[Record]]:
    image = Image()
    history = []
    for _ in range(draw(st.integers(0, max_steps))):
        step = draw(steps(image))
        history.append(step)
        image = after(image, step)
    return history


def after(image: Image, step: list[Record]) -> Image:
    delta = Delta(image)
    for record in step:
        delta.replay(record)
    offset = Offset(image.offset + len(step))
    return delta.publish(offset=offset, epoch=LeaderEpoch(1), timestamp=int(offset))


def _feature(draw: DrawFn, image: Image) -> list[Record]:
    name = draw(st.sampled_from(["metadata.version", "x.version", "y.version"]))
    return [FeatureLevelRecord(name=name, feature_level=draw(st.integers(0, 30)))]


def _broker(draw: DrawFn, image: Image) -> list[Record]:
    return [
        RegisterBrokerRecord(
            broker_id=draw(nodes),
            incarnation_id=draw(ids),
            broker_epoch=image.offset + 1,
            end_points=(
                BrokerEndpoint(
                    name="PLAINTEXT",
                    host="h",
                    port=draw(st.integers(0, 65535)),
                    security_protocol=0,
                ),
            ),
            features=(BrokerFeature(name="f", min_supported_version=0, max_supported_version=1),),
            rack=draw(st.none() | names),
            fenced=draw(st.booleans()),
            log_dirs=tuple(draw(st.lists(ids, max_size=2))),
            cordoned_log_dirs=draw(st.none() | st.just(())),
        )
    ]


def _broker_change(draw: DrawFn, image: Image) -> list[Record]:
    broker = image.brokers[draw(st.sampled_from(list(image.brokers)))]
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            fenced=draw(st.sampled_from([-1, 0, 1])),
            in_controlled_shutdown=draw(st.sampled_from([0, 1])),
            log_dirs=tuple(draw(st.lists(ids, max_size=2))),
            cordoned_log_dirs=draw(st.none() | st.lists(ids, max_size=1).map(tuple)),
        )
    ]


def _unregister(draw: DrawFn, image: Image) -> list[Record]:
    broker = image.brokers[draw(st.sampled_from(list(image.brokers)))]
    return [UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch)]


def _controller(draw: DrawFn, image: Image) -> list[Record]:
    return [
        RegisterControllerRecord(
            controller_id=draw(nodes),
            incarnation_id=draw(ids),
            zk_migration_ready=False,
            end_points=(),
            features=(),
        )
    ]


def _config(draw: DrawFn, image: Image) -> list[Record]:
    return [
        ConfigRecord(
            resource_type=draw(st.sampled_from(list(ConfigType))),
            resource_name=draw(names),
            name=draw(names),
            value=draw(st.none() | names),
        )
    ]


def _producer_ids(draw: DrawFn, image: Image) -> list[Record]:
    after_next = image.next_producer_id + draw(st.integers(1, 1000))
    return [ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=after_next)]


def _entry(draw: DrawFn, image: Image) -> list[Record]:
    acl = UUID(int=draw(st.integers(1, 3)))
    added = AccessControlEntryRecord(
        id=acl,
        resource_type=2,
        resource_name=draw(names),
        pattern_type=3,
        principal="User:x",
        host="*",
        operation=2,
        permission_type=3,
    )
    quota = ClientQuotaRecord(
        entity=(EntityData(entity_type="user", entity_name=draw(st.none() | names)),),
        key="producer_byte_rate",
        value=1.5,
        remove=draw(st.booleans()),
    )
    return draw(st.sampled_from([[added], [RemoveAccessControlEntryRecord(id=acl)], [quota]]))


def partition_record(draw: DrawFn, topic: UUID, index: int) -> PartitionRecord:
    replicas = tuple(draw(st.lists(nodes, min_size=1, max_size=3, unique=True)))
    isr = draw(subsets(replicas))
    out = tuple(node for node in replicas if node not in isr)
    return PartitionRecord(
        partition_id=index,
        topic_id=topic,
        replicas=replicas,
        isr=isr,
        removing_replicas=(),
        adding_replicas=(),
        leader=draw(st.sampled_from((-1, *isr))),
        leader_recovery_state=draw(st.sampled_from([0, 1])),
        leader_epoch=draw(st.integers(0, 5)),
        partition_epoch=draw(st.integers(0, 5)),
        directories=tuple(draw(st.none() | ids) for _ in replicas),
        eligible_leader_replicas=draw(subsets(out)) or None,
        last_known_elr=draw(subsets(out)) or None,
    )


def _topic(draw: DrawFn, image: Image) -> list[Record]:
    name = draw(names.filter(lambda drawn: drawn not in image.topics_by_name))
    topic = draw(ids.filter(lambda drawn: drawn not in image.topics_by_id))
    count = draw(st.integers(0, 3))
    made: list[Record] = [TopicRecord(name=name, topic_id=topic)]
    return made + [partition_record(draw, topic, index) for index in range(count)]


def _a_topic(draw: DrawFn, image: Image) -> TopicImage:
    return image.topics_by_id[draw(st.sampled_from(list(image.topics_by_id)))]


def _remove_topic(draw: DrawFn, image: Image) -> list[Record]:
    return [RemoveTopicRecord(topic_id=_a_topic(draw, image).id)]


def _more_partitions(draw: DrawFn, image: Image) -> list[Record]:
    topic = _a_topic(draw, image)
    return [partition_record(draw, topic.id, len(topic.partitions))]


def _clear_elr(draw: DrawFn, image: Image) -> list[Record]:
    return [ClearElrRecord(topic_name=draw(st.sampled_from(["", *image.topics_by_name])))]


def _change(draw: DrawFn, image: Image) -> list[Record]:
    filled = [topic for topic in image.topics_by_id.values() if topic.partitions]
    topic = draw(st.sampled_from(filled))
    index = draw(st.integers(0, len(topic.partitions) - 1))
    return [partition_change(draw, topic.id, index, topic.partitions[index])]


def partition_change(
    draw: DrawFn, topic: UUID, index: int, partition: PartitionImage
) -> PartitionChangeRecord:
    isr = draw(st.none() | subsets(partition.replicas))
    now = partition.isr if isr is None else isr
    out = tuple(node for node in partition.replicas if node not in now)
    needs_elr = any(node in now for node in partition.elr)
    elr = draw(subsets(out)) if needs_elr else draw(st.none() | subsets(out))
    keeps_leader = partition.leader == -1 or partition.leader in now
    choices = [-1, *now] + ([-2] if keeps_leader else [])
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic,
        isr=isr,
        leader=draw(st.sampled_from(choices)),
        leader_recovery_state=draw(st.sampled_from([-1, 0, 1])),
        eligible_leader_replicas=elr,
        last_known_elr=draw(st.none() | subsets(out)),
        directories=draw(st.none() | st.just(tuple(UUID(int=9) for _ in partition.replicas))),
    )
