"""ElectLeaders, and the return of leadership to preferred replicas."""

from __future__ import annotations

from riverrun.cluster.partitions.elect_leaders import balance, elect_leaders, imbalanced, leaderless
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest, TopicPartitions
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import NONE, P, after, cluster, state, topic

CONFIGS = make_configs()
PREFERRED, UNCLEAN = 0, 1


def elect(
    image: Image, kind: int, indexes: tuple[int, ...] | None, name: str = "t"
) -> tuple[Image, list[tuple[int, ErrorCode, str | None]]]:
    wanted = None
    if indexes is not None:
        wanted = (TopicPartitions(topic=name, partitions=indexes),)
    request = ElectLeadersRequest(topic_partitions=wanted, election_type=kind)
    decision = elect_leaders(CONFIGS, image, request)
    results = [
        (one.partition_id, one.error_code, one.error_message)
        for answered in decision.response.replica_election_results
        for one in answered.partition_result
    ]
    return (replayed(image, decision.records) if decision.records else image), results


def test_preferred_replica_is_elected_on_request() -> None:
    image, results = elect(cluster(P(2, (1, 2, 3))), PREFERRED, (0,))
    assert results == [(0, ErrorCode.NONE, None)]
    partition = topic(image).partitions[0]
    assert state(partition) == P(1, (1, 2, 3))
    assert partition.leader_epoch == 6


def test_election_that_is_not_needed_is_refused_with_kafkas_message() -> None:
    image = cluster(P(1, (1, 2, 3)), P(2, (2, 3)))
    after_it, results = elect(image, PREFERRED, (0, 1, 2))
    assert after_it is image
    assert results == [
        (0, ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."),
        (1, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
        (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such partition as t-2"),
    ]
    _, (unknown,) = elect(image, PREFERRED, (0,), name="u")
    assert unknown == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as u")


def test_request_for_all_partitions_omits_those_without_an_election() -> None:
    image = cluster(P(1, (1, 2, 3)), P(2, (1, 2, 3)), P(2, (2, 3)))
    _, results = elect(image, PREFERRED, None)
    assert [(index, code) for index, code, _ in results] == [
        (1, ErrorCode.NONE),
        (2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ]


def test_unclean_election_elects_any_live_replica_where_there_is_no_leader() -> None:
    image = cluster(P(NONE, (), elr=(1,), last=(1,)), P(2, (2,)), fenced=(1,))
    image, results = elect(image, UNCLEAN, (0, 1))
    assert [code for _, code, _ in results] == [ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED]
    assert state(topic(image).partitions[0]) == P(2, (2,), recovering=True)


def test_unclean_election_without_live_replicas_is_refused() -> None:
    image = cluster(P(NONE, (), elr=(1,), last=(1,), replicas=(1,)), fenced=(1,))
    _, ((_, code, message),) = elect(image, UNCLEAN, (0,))
    assert code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert message == "Eligible topic partition leaders are not available."


def test_partition_named_twice_is_elected_once() -> None:
    image, results = elect(cluster(P(2, (1, 2, 3))), PREFERRED, (0, 0))
    codes = [code for _, code, _ in results]
    assert codes == [ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED]
    assert topic(image).partitions[0].leader_epoch == 6


def test_balance_moves_leadership_to_in_sync_preferred_replicas() -> None:
    image = cluster(P(2, (1, 2, 3)), P(2, (2, 3)), P(3, (3, 2), replicas=(2, 3)), P(NONE, ()))
    decision = balance(CONFIGS, image)
    assert (len(decision.records), decision.response) == (2, False)
    image = replayed(image, decision.records)
    assert [one.leader for one in topic(image).partitions] == [1, 2, 2, NONE]
    assert (imbalanced(image), leaderless(image)) == (1, 1)


def test_balance_is_limited_per_decision() -> None:
    image = cluster(*(P(2, (1, 2, 3)) for _ in range(5)))
    first = balance(CONFIGS, image, limit=3)
    assert (len(first.records), first.response) == (3, True)
    second = balance(CONFIGS, replayed(image, first.records), limit=3)
    assert (len(second.records), second.response) == (2, False)


def test_balance_skips_preferred_replicas_that_may_not_lead() -> None:
    image = cluster(P(2, (2, 1)), fenced=(1,))
    assert balance(CONFIGS, image).records == ()
    assert state(after(image, ())) == P(2, (2, 1))
