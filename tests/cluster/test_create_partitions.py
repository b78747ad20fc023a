"""CreatePartitions: topics grow but never shrink."""

import pytest

from riverrun.cluster.partitions.create_partitions import create_partitions
from riverrun.cluster.topics.create_topics import create_topics
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import TopicName
from riverrun.wire.messages.create_partitions_request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from riverrun.wire.messages.create_partitions_response import CreatePartitionsTopicResult
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from tests.cluster.fakes import (
    SeededRandomness,
    cluster_of,
    make_configs,
    replayed,
)

Wish = tuple[str, int, tuple[tuple[int, ...], ...] | None]


def image_of(*names: str, brokers: tuple[int, ...] = (1,), replicas: int = 1) -> Image:
    image = cluster_of(*brokers)
    topics = tuple(
        CreatableTopic(
            name=name, num_partitions=2, replication_factor=replicas, assignments=(), configs=()
        )
        for name in names
    )
    request = CreateTopicsRequest(topics=topics)
    decision = create_topics(make_configs(), image, request, SeededRandomness())
    return replayed(image, decision.records)


def grow(
    image: Image, *wishes: Wish, validate_only: bool = False
) -> tuple[list[CreatePartitionsTopicResult], Image]:
    request = CreatePartitionsRequest(
        topics=tuple(
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if given is None
                else tuple(CreatePartitionsAssignment(broker_ids=one) for one in given),
            )
            for name, count, given in wishes
        ),
        timeout_ms=1,
        validate_only=validate_only,
    )
    decision = create_partitions(make_configs(), image, request, SeededRandomness())
    after = replayed(image, decision.records) if decision.records else image
    return list(decision.response.results), after


def test_new_partitions_have_the_replication_factor_of_existing_ones() -> None:
    image = image_of("t", brokers=(1, 2, 3), replicas=2)
    before = image.topics_by_name[TopicName("t")].partitions
    (response,), after = grow(image, ("t", 5, None))
    assert response.error_code is ErrorCode.NONE
    partitions = after.topics_by_name[TopicName("t")].partitions
    assert partitions[:2] == before
    assert [len(one.replicas) for one in partitions] == [2] * 5


def test_validate_only_changes_nothing() -> None:
    image = image_of("t")
    (response,), after = grow(image, ("t", 5, None), validate_only=True)
    assert response.error_code is ErrorCode.NONE
    assert after is image


@pytest.mark.parametrize(
    ("wish", "code", "sentence"),
    [
        (("t", 2, None), ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (
            ("t", 1, None),
            ErrorCode.INVALID_PARTITIONS,
            "The topic t currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            ("t", -1, None),
            ErrorCode.INVALID_PARTITIONS,
            "The topic t currently has 2 partition(s); -1 would not be an increase.",
        ),
        (("nope", 3, None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (
            ("t", 4, ((1,),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            ("t", 3, ((5,),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes broker 5, but no such broker is registered.",
        ),
        (
            ("t", 20_000, None),
            ErrorCode.POLICY_VIOLATION,
            "Excessively large number of partitions per request. A request may create at most "
            "10000.",
        ),
        (
            ("t", 2**31 - 1, None),
            ErrorCode.POLICY_VIOLATION,
            "Excessively large number of partitions per request. A request may create at most "
            "10000.",
        ),
    ],
)
def test_refusals_match_kafka(wish: Wish, code: ErrorCode, sentence: str | None) -> None:
    image = image_of("t")
    (response,), after = grow(image, wish)
    assert (response.error_code, response.error_message) == (code, sentence)
    assert after is image


def test_each_topic_is_decided_alone() -> None:
    responses, after = grow(image_of("a", "b"), ("a", 3, ((1,),)), ("b", 1, None))
    assert {one.name: one.error_code for one in responses} == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.INVALID_PARTITIONS,
    }
    assert len(after.topics_by_name[TopicName("a")].partitions) == 3


def test_repeated_topic_name_is_refused() -> None:
    image = image_of("a", "b")
    responses, after = grow(image, ("a", 3, None), ("a", 4, None), ("b", 3, None))
    assert [(one.name, one.error_code) for one in responses] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.NONE),
    ]
    assert len(after.topics_by_name[TopicName("a")].partitions) == 2
