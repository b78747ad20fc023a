"""Traffic by topic: counted by requests, limited in number, and dropped with the topic."""

from __future__ import annotations

from riverrun.ports.metrics import Metrics
from riverrun.server.metrics.topic_traffic import OTHER, TopicsTraffic
from riverrun.server.requests import fetch
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import encode_request
from riverrun.wire.messages import fetch_request, produce_request
from tests.server.requests.leader_node import ME, TOPIC, Node
from tests.storage.machines import batch


def series(metrics: Metrics, name: str) -> dict[str, float]:
    return {
        labels["topic"]: value
        for read in metrics.families[name].readers
        for labels, value in read()
    }


def test_topics_beyond_the_limit_share_one_series() -> None:
    metrics = Metrics()
    traffic = TopicsTraffic(metrics, topics_max=2)
    for topic in ("a", "b", "c", "d", "a"):
        traffic[topic].bytes_in += 5
    assert series(metrics, "riverrun_topic_bytes_in_total") == {"a": 10, "b": 5, OTHER: 10}


def test_series_of_a_deleted_topic_ends_and_makes_room() -> None:
    metrics = Metrics()
    traffic = TopicsTraffic(metrics, topics_max=1)
    traffic["a"].records_in += 1
    traffic.topic_deleted("a")
    traffic.topic_deleted("never seen")
    assert series(metrics, "riverrun_topic_records_in_total") == {}
    traffic["b"].records_in += 7
    assert series(metrics, "riverrun_topic_records_in_total") == {"b": 7}


def produce_frame(records: bytes, version: int) -> bytes:
    part = produce_request.PartitionProduceData(index=0, records=records)
    topic = produce_request.TopicProduceData(name="topic", topic_id=TOPIC, partition_data=(part,))
    request = produce_request.ProduceRequest(acks=1, timeout_ms=1000, topic_data=(topic,))
    return encode_request(ApiKey.PRODUCE, version, request)


def fetch_frame(version: int) -> bytes:
    part = fetch_request.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20, log_start_offset=-1
    )
    topic = fetch_request.FetchTopic(topic="topic", topic_id=TOPIC, partitions=(part,))
    request = fetch_request.FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_epoch=-1,
        topics=(topic,),
        forgotten_topics_data=(),
    )
    return encode_request(ApiKey.FETCH, version, request)


def test_requests_by_name_and_by_id_are_counted_once_per_batch() -> None:
    async def scenario() -> None:
        records = bytes(batch(b"one", b"two", b"three"))
        traffic = node.services.topics_traffic["topic"]
        for version in (12, 13):
            node.produce(produce_frame(records, version), version)
            node.partition().advance()
        assert (traffic.produce_requests, traffic.records_in) == (2, 6)
        assert traffic.bytes_in == 2 * len(records)
        for version in (12, 13):
            node.call(fetch, fetch_frame(version), 0, version)
        assert (traffic.fetch_requests, traffic.bytes_out) == (2, 2 * traffic.bytes_in)
        broken = bytearray(records)
        broken[-1] ^= 1
        node.produce(produce_frame(bytes(broken), 12), 12)
        assert (traffic.produce_requests, traffic.produce_failures) == (2, 1)
        assert list(node.services.topics_traffic) == ["topic"]

    node = Node(isr=(ME,), replicas=(ME,))
    node.run(scenario())
