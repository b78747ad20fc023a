"""Nodes replay metadata at different speeds. A node with stale metadata
must not make a reader lose records."""

import asyncio
from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from pyspark_riverrun.cluster import planner as cluster
from pyspark_riverrun.cluster.planner import ATTEMPTS_MAX, DataLost, Planner, SubscribedPartitions
from pyspark_riverrun.offsets import topic_partition
from pyspark_riverrun.options import read_options
from pyspark_riverrun.reading import prefetch as fetching
from pyspark_riverrun.reading.prefetch import MISMATCHES_MAX, FetchOptions, _RangeFetcher
from pyspark_riverrun.reading.ranges import Range
from riverrun.client.partitions import EARLIEST
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

A0, A1 = topic_partition("a", 0), topic_partition("a", 1)
FIRST_ID, SECOND_ID = UUID(int=1000), UUID(int=2000)
BOTH = SubscribedPartitions(partitions=(A0, A1), topic_ids={"a": FIRST_ID})


def topic(count: int, topic_id: UUID = FIRST_ID) -> MetadataResponse:
    """The response of a node that has this many partitions. 0 means that it lacks the topic."""
    partitions = tuple(
        MetadataResponsePartition(error_code=ErrorCode.NONE, partition_index=n, leader_id=1)
        for n in range(count)
    )
    code = ErrorCode.NONE if count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    row = MetadataResponseTopic(error_code=code, name="a", topic_id=topic_id, partitions=partitions)
    return MetadataResponse(brokers=(), topics=(row,))


class FakePool:
    """Nodes that respond in turn. The last response is repeated."""

    def __init__(self, *answers: MetadataResponse) -> None:
        self.answers = list(answers)
        self.retry = RetryPolicy(backoff_s=0.0, backoff_s_max=0.0)
        self.cluster = SimpleNamespace(topics={})
        self.switches = 0

    async def metadata(self, _: object) -> MetadataResponse:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def try_again(self, operation: Any) -> Any:
        return await operation()

    async def switch_node(self) -> None:
        self.switches += 1


class FakeLink:
    def __init__(self, pool: FakePool) -> None:
        self.pool = pool
        self.options = SimpleNamespace(api_timeout_s=1.0)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def release(self, *_: object) -> None:
        """There is no connection."""


def planner(pool: FakePool) -> Planner:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}
    return Planner(FakeLink(pool), read_options(given, is_streaming=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("behind", [topic(1), topic(0), topic(2, SECOND_ID)])
def test_partition_unknown_to_one_node_is_requested_from_another(behind: MetadataResponse) -> None:
    pool = FakePool(behind, topic(2))
    assert planner(pool).find(BOTH) == BOTH
    assert pool.switches == 1


def test_partition_unknown_to_several_nodes_counts_as_deleted() -> None:
    pool = FakePool(topic(1))
    assert planner(pool).find(BOTH).partitions == (A0,)
    assert pool.switches == ATTEMPTS_MAX - 1
    with pytest.raises(KafkaError, match="topic a does not exist"):
        planner(FakePool(topic(0))).find(BOTH)


def test_new_topic_is_found_although_one_node_lacks_it() -> None:
    assert planner(FakePool(topic(0), topic(2))).find() == BOTH


def test_smaller_end_offset_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [3, 10]

    async def offsets_at(_: object, wanted: Mapping[TopicPartition, int], **__: object) -> Any:
        return dict.fromkeys(wanted, ends.pop(0) if len(ends) > 1 else ends[0])

    monkeypatch.setattr(cluster, "offsets_at", offsets_at)
    assert planner(FakePool(topic(1))).latest([A0], {A0: 10}) == {A0: 10}
    ends[:] = [3]
    assert planner(FakePool(topic(1))).latest([A0], {A0: 10}) == {A0: 3}


def test_commit_to_an_unresponsive_coordinator_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(cluster, "commit_offsets", never)
    monkeypatch.setattr(cluster, "COMMIT_S_MAX", 0.001)
    with pytest.raises(TimeoutError):
        planner(FakePool(topic(1))).commit("g", {A0: 1})


def fetcher(position: int, log: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> _RangeFetcher:
    async def offsets_at(_: object, wanted: Mapping[TopicPartition, int]) -> Any:
        return {at: log[0] if time == EARLIEST else log[1] for at, time in wanted.items()}

    monkeypatch.setattr(fetching, "offsets_at", offsets_at)
    options = FetchOptions(
        bytes_max=1, wait_ms=1, is_committed_only=True, fail_on_data_loss=True, topic_id=None
    )
    range_ = Range(topic="a", partition=0, start=position, end=position + 10)
    made = _RangeFetcher(FakeLink(FakePool(topic(1))), range_, options)  # type: ignore[arg-type]
    made._replica = 2
    return made


def test_reader_switches_from_a_lagging_follower_to_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = fetcher(50, (0, 90), monkeypatch)
    for _ in range(MISMATCHES_MAX + 1):
        with pytest.raises(KafkaError) as caught:
            asyncio.run(made._out_of_range())
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (made.position, made._replica) == (50, None)


def test_position_beyond_the_log_end_is_data_loss_after_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = fetcher(50, (0, 40), monkeypatch)
    for _ in range(MISMATCHES_MAX - 1):
        with pytest.raises(KafkaError):
            asyncio.run(made._out_of_range())
    with pytest.raises(DataLost, match="offset 50 of a-0 is beyond the end of the log, 40"):
        asyncio.run(made._out_of_range())


def test_records_deleted_by_retention_are_data_loss_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DataLost, match="offsets 50 to 54 of a-0 were deleted"):
        asyncio.run(fetcher(50, (55, 90), monkeypatch)._out_of_range())
