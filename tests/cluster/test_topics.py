"""CreateTopics and DeleteTopics: decisions, and their records replayed."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from riverrun.cluster.decision import Decision
from riverrun.cluster.topics.create_topics import create_topics
from riverrun.cluster.topics.delete_topics import delete_topics
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import PartitionRecord, TopicRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicName
from riverrun.wire.messages.create_topics_request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from riverrun.wire.messages.create_topics_response import CreatableTopicResult, CreateTopicsResponse
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from riverrun.wire.messages.delete_topics_response import DeletableTopicResult
from tests.cluster.fakes import SeededRandomness, cluster_of, make_configs, replayed


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assigned: Mapping[int, tuple[int, ...]] | None = None,
    **configs: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=index, broker_ids=nodes)
            for index, nodes in (assigned or {}).items()
        ),
        configs=tuple(
            CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ),
    )


def create(
    *topics: CreatableTopic,
    image: Image | None = None,
    given: Mapping[str, str] | None = None,
    seed: int = 1,
    validate_only: bool = False,
) -> Decision[CreateTopicsResponse]:
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return create_topics(
        make_configs(given), image or cluster_of(1), request, SeededRandomness(seed)
    )


def result(one: CreatableTopic, image: Image | None = None) -> CreatableTopicResult:
    decision = create(one, image=image)
    assert decision.records == () or decision.response.topics[0].error_code is ErrorCode.NONE
    return decision.response.topics[0]


def with_topics(*names: str) -> Image:
    image = cluster_of(1)
    return replayed(image, create(*(topic(name, 2) for name in names), image=image).records)


def test_topic_is_created_with_its_partitions_and_settings() -> None:
    image = cluster_of(1)
    decision = create(topic("t", 3, retention_ms="1000"), image=image)
    after = replayed(image, decision.records)
    made = after.topics_by_name[TopicName("t")]
    assert len(made.partitions) == 3
    for partition in made.partitions:
        assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1,), 0)
        assert partition.directories == image.brokers[partition.leader].directories
    assert after.config(ConfigType.TOPIC, "t") == {"retention.ms": "1000"}
    response = decision.response.topics[0]
    assert (response.error_code, response.topic_id) == (ErrorCode.NONE, made.id)
    assert (response.num_partitions, response.replication_factor) == (3, 1)


def test_response_lists_all_settings_in_order_with_their_sources() -> None:
    response = result(topic("t", retention_ms=" 100 "))
    rows = {row.name: row for row in response.configs or ()}
    assert list(rows) == sorted(rows)
    assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == (" 100 ", 1)
    assert (rows["segment.bytes"].value, rows["segment.bytes"].config_source) == ("1073741824", 5)


def test_coarser_node_setting_is_a_source_for_new_topics() -> None:
    response = create(topic("t"), given={"log.retention.hours": "24"}).response.topics[0]
    rows = {row.name: (row.value, row.config_source) for row in response.configs or ()}
    assert rows["retention.ms"] == ("86400000", 4)


def test_minus_one_means_the_defaults_of_the_node() -> None:
    given = {"num.partitions": "5", "default.replication.factor": "2"}
    image = cluster_of(1, 2, 3)
    decision = create(topic("t", -1, -1), image=image, given=given)
    partitions = [record for record in decision.records if isinstance(record, PartitionRecord)]
    assert [len(record.replicas) for record in partitions] == [2] * 5


def test_validate_only_responds_and_writes_nothing() -> None:
    decision = create(topic("t", 2), validate_only=True)
    assert decision.records == ()
    assert decision.response.topics[0].num_partitions == 2
    assert decision.response.topics[0].topic_id is not None


@pytest.mark.parametrize(
    ("wanted", "code", "sentence"),
    [
        (topic("old"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'old' already exists."),
        (
            topic("c_d.e"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic 'c_d.e' collides with existing topic: c.d_e",
        ),
        (
            topic("t", 0),
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            topic("t", 0, 0),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            topic("t", 10001),
            ErrorCode.POLICY_VIOLATION,
            "Excessively large number of partitions per request. A request may create at most "
            "10000.",
        ),
        (
            topic("t", -1, 1, {0: (1,)}),
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to "
            "-1.",
        ),
        (
            topic("t", 1, -1, {0: (1,)}),
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            topic("t", -1, -1, {0: (1,), 2: (1,)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            topic("t", -1, -1, {0: (1, 1)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            topic("t", -1, -1, {0: (1, 5)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes broker 5, but no such broker is registered.",
        ),
        (
            topic("t", -1, -1, {0: ()}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        ),
        (topic("t", foo="1"), ErrorCode.INVALID_CONFIG, "Unknown topic config name: foo"),
        (
            topic("t", retention_ms=None, foo="1"),
            ErrorCode.INVALID_CONFIG,
            "Null value not supported for topic configs: retention.ms",
        ),
        (
            topic("__cluster_metadata"),
            ErrorCode.INVALID_REQUEST,
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
    ],
)
def test_refusals_match_kafka(wanted: CreatableTopic, code: ErrorCode, sentence: str) -> None:
    response = result(wanted, with_topics("old", "c.d_e"))
    assert (response.error_code, response.error_message) == (code, sentence)
    assert (response.num_partitions, response.replication_factor) == (-1, -1)
    assert response.configs == ()
    assert response.topic_id is None


def test_settings_are_checked_after_names_and_before_partitions() -> None:
    image = with_topics("old")
    assert result(topic("t", 0, 0, foo="1"), image).error_code is ErrorCode.INVALID_CONFIG
    assert result(topic("old", 0, foo="1"), image).error_code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_invalid_topic_does_not_affect_the_others() -> None:
    image = with_topics("old")
    decision = create(topic("a"), topic("old"), topic("b", 0), topic("c"), image=image)
    codes = [(one.name, one.error_code) for one in decision.response.topics]
    assert codes == [
        ("a", ErrorCode.NONE),
        ("old", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("b", ErrorCode.INVALID_PARTITIONS),
        ("c", ErrorCode.NONE),
    ]
    assert [r.name for r in decision.records if isinstance(r, TopicRecord)] == ["a", "c"]


def test_repeated_topic_name_is_refused_once() -> None:
    decision = create(topic("a"), topic("a"), topic("b"))
    assert [(one.name, one.error_code) for one in decision.response.topics] == [
        ("b", ErrorCode.NONE),
        ("a", ErrorCode.INVALID_REQUEST),
    ]
    assert decision.response.topics[1].error_message == "Duplicate topic name."


def test_manual_assignment_is_used_as_given() -> None:
    image = cluster_of(1, 2, 3)
    decision = create(topic("t", -1, -1, {1: (2, 3), 0: (3, 1)}), image=image)
    made = replayed(image, decision.records).topics_by_name[TopicName("t")]
    assert [one.replicas for one in made.partitions] == [(3, 1), (2, 3)]
    assert [one.leader for one in made.partitions] == [3, 2]


def test_manual_assignment_must_have_one_replication_factor() -> None:
    response = result(topic("t", -1, -1, {0: (1,), 1: (2, 3)}), cluster_of(1, 2, 3))
    assert response.error_message == (
        "The manual partition assignment includes a partition with 2 replica(s), but this is not "
        "consistent with previous partitions, which have 1 replica(s)."
    )


def test_request_with_too_many_records_is_refused_as_a_whole() -> None:
    topics = tuple(topic(f"t{number}", 1) for number in range(5001))
    with pytest.raises(KafkaError) as refused:
        create(*topics)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


# Deletion


def delete(image: Image, *wanted: tuple[str | None, UUID | None]) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(
        timeout_ms=1,
        topics=tuple(DeleteTopicState(name=name, topic_id=one) for name, one in wanted),
    )
    return list(delete_topics(make_configs(), image, request).response.responses)


def test_topic_is_deleted_with_its_settings() -> None:
    image = cluster_of(1)
    image = replayed(image, create(topic("t", retention_ms="1"), topic("u"), image=image).records)
    request = DeleteTopicsRequest(timeout_ms=1, topic_names=("t",))
    decision = delete_topics(make_configs(), image, request)
    after = replayed(image, decision.records)
    assert list(after.topics_by_name) == ["u"]
    assert after.config(ConfigType.TOPIC, "t") == {}
    assert decision.response.responses[0].error_code is ErrorCode.NONE


def test_topics_are_deleted_by_name_and_by_id() -> None:
    image = with_topics("a", "b")
    by_id = image.topics_by_name[TopicName("b")].id
    responses = delete(image, ("a", None), (None, by_id))
    assert {one.name: one.error_code for one in responses} == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.NONE,
    }
    assert {one.topic_id for one in responses} == {one.id for one in image.topics_by_name.values()}


@pytest.mark.parametrize(
    ("wanted", "code", "sentence"),
    [
        (
            (("nope", None),),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        ),
        (
            ((None, UUID(int=7)),),
            ErrorCode.UNKNOWN_TOPIC_ID,
            "This server does not host this topic ID.",
        ),
        (
            (("a", UUID(int=7)),),
            ErrorCode.INVALID_REQUEST,
            "You may not specify both topic name and topic id.",
        ),
        (
            ((None, None),),
            ErrorCode.INVALID_REQUEST,
            "Neither topic name nor id were specified.",
        ),
        ((("a", None), ("a", None)), ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        (
            ((None, UUID(int=7)), (None, UUID(int=7))),
            ErrorCode.INVALID_REQUEST,
            "Duplicate topic id.",
        ),
    ],
)
def test_refused_deletions_match_kafka(
    wanted: tuple[tuple[str | None, UUID | None], ...], code: ErrorCode, sentence: str
) -> None:
    responses = delete(with_topics("a"), *wanted)
    assert [(one.error_code, one.error_message) for one in responses] == [(code, sentence)]


def test_name_and_id_of_the_same_topic_are_refused() -> None:
    image = with_topics("a")
    responses = delete(image, ("a", None), (None, image.topics_by_name[TopicName("a")].id))
    assert [one.error_message for one in responses] == [
        "The provided topic name maps to an ID that was already supplied."
    ]


def test_deletion_can_be_disabled() -> None:
    configs = make_configs({"delete.topic.enable": "false"})
    request = DeleteTopicsRequest(timeout_ms=1, topic_names=("a",))
    with pytest.raises(KafkaError) as refused:
        delete_topics(configs, with_topics("a"), request)
    assert refused.value.code is ErrorCode.TOPIC_DELETION_DISABLED


def test_recreated_topic_has_another_id() -> None:
    image = cluster_of(1)
    image = replayed(image, create(topic("t"), image=image, seed=1).records)
    first = image.topics_by_name[TopicName("t")].id
    request = DeleteTopicsRequest(timeout_ms=1, topic_names=("t",))
    image = replayed(image, delete_topics(make_configs(), image, request).records)
    image = replayed(image, create(topic("t"), image=image, seed=2).records)
    assert image.topics_by_name[TopicName("t")].id != first
