"""Options of Spark's Kafka source, and one sentence for each invalid one."""

import pytest

from pyspark_riverrun.offsets import Position, Timestamps, from_json, to_json, topic_partition
from pyspark_riverrun.options import BadOption, read_options, write_options
from riverrun.records.compression import Compression

CLUSTER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
READ = CLUSTER | {"subscribe": "a"}


def test_option_names_are_case_insensitive() -> None:
    options = read_options(
        {"KAFKA.Bootstrap.Servers": "h:1,[::1]:2", "SUBSCRIBE": " a, b,a ", "minpartitions": "7"},
        is_streaming=False,
    )
    assert options.cluster.bootstrap == (("h", 1), ("::1", 2))
    assert options.subscription.topics == ("a", "b")
    assert options.min_partitions == 7


def test_default_start_is_earliest_for_batches_and_latest_for_streams() -> None:
    batch = read_options(READ, is_streaming=False)
    assert (batch.starting, batch.ending) == (Position.EARLIEST, Position.LATEST)
    assert read_options(READ, is_streaming=True).starting is Position.LATEST
    assert batch.is_committed_only
    assert batch.fail_on_data_loss
    assert not batch.include_headers


def test_offsets_timestamps_and_partitions_are_parsed_from_json() -> None:
    options = read_options(
        CLUSTER
        | {
            "assign": '{"a": [0, 2]}',
            "startingOffsets": '{"a": {"0": 23, "2": -2}}',
            "endingOffsetsByTimestamp": '{"a": {"0": 1000, "2": 2000}}',
        },
        is_streaming=False,
    )
    assert options.subscription.assignment == (topic_partition("a", 0), topic_partition("a", 2))
    assert options.starting == {topic_partition("a", 0): 23, topic_partition("a", 2): -2}
    assert options.ending == Timestamps(
        everywhere=None, exact={topic_partition("a", 0): 1000, topic_partition("a", 2): 2000}
    )
    everywhere = read_options(READ | {"startingTimestamp": "1000"}, is_streaming=True)
    assert everywhere.starting == Timestamps(everywhere=1000, exact={})


def test_offsets_in_checkpoints_round_trip() -> None:
    written = to_json(
        {topic_partition("b", 0): 3, topic_partition("a", 10): 1, topic_partition("a", 2): 0}
    )
    assert written == {"a": {"2": 0, "10": 1}, "b": {"0": 3}}
    assert to_json(from_json(written)) == written


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "nowhere", "subscribe": "a"}, "'nowhere' is not an address"),
        (CLUSTER, "set exactly one of subscribe, subscribePattern and assign"),
        (READ | {"assign": '{"a": [0]}'}, "found: subscribe and assign"),
        (CLUSTER | {"subscribe": " , "}, "names no topic"),
        (CLUSTER | {"subscribePattern": "a("}, "is not a regular expression"),
        (CLUSTER | {"assign": "a"}, "assign: expected JSON like"),
        (CLUSTER | {"assign": '{"a": 0}'}, "assign: the partitions of a must be a list"),
        (READ | {"startingOffsets": "first"}, "startingOffsets: expected JSON"),
        (READ | {"startingOffsets": '{"a": {"0": -3}}'}, "-3 for a-0 is not an offset"),
        (READ | {"startingOffsets": '{"a": {"0": "1"}}'}, "is not an integer"),
        (READ | {"startingOffsets": "latest"}, "cannot be latest"),
        (READ | {"endingOffsets": "earliest"}, "cannot be earliest"),
        (READ | {"endingOffsets": '{"a": {"0": -2}}'}, "cannot be earliest"),
        (READ | {"minPartitions": "many"}, "minPartitions must be an integer, not 'many'"),
        (READ | {"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be between 1"),
        (READ | {"failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        (READ | {"maxTriggerDelay": "soon"}, "a duration like 15m"),
        (
            READ | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "larger than maxOffsetsPerTrigger",
        ),
        (READ | {"startingOfsets": "earliest"}, "did you mean startingOffsets"),
        (READ | {"kafka.group.ids": "g"}, "did you mean kafka.group.id"),
        (READ | {"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        (READ | {"kafka.sasl.jaas.confg": "x"}, "did you mean kafka.sasl.jaas.config"),
        (READ | {"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
    ],
)
def test_invalid_read_option_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption) as failure:
        read_options(options, is_streaming=False)
    assert words in str(failure.value)


def test_stream_rejects_ending_offsets() -> None:
    with pytest.raises(BadOption, match="a stream has no end"):
        read_options(READ | {"endingOffsets": "latest"}, is_streaming=True)


def test_unrelated_options_are_ignored() -> None:
    unrelated = {"path": "x", "mergeSchema": "true", "kafka.linger.ms": "5", "kafka.retries": "3"}
    read_options(READ | unrelated, is_streaming=False)
    write_options(CLUSTER | unrelated | {"checkpointLocation": "y"})


def test_writer_uses_producer_settings() -> None:
    options = write_options(
        CLUSTER | {"topic": "t", "kafka.compression.type": "zstd", "kafka.batch.size": "1000"}
    )
    assert options.compression is Compression.ZSTD
    assert (options.topic, options.batch_bytes, options.acks) == ("t", 1000, -1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.compression.type": "rar"}, "must be one of none, gzip, snappy, lz4, zstd"),
        ({"kafka.acks": "2"}, "kafka.acks must be all, 1 or 0"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "needs kafka.acks=all"),
        ({"kafka.transactional.id": "x"}, "set kafka.delivery=exactly-once"),
        ({"topic": " "}, "topic is empty"),
        ({"topics": "t"}, "did you mean topic"),
    ],
)
def test_invalid_write_option_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption) as failure:
        write_options(CLUSTER | options)
    assert words in str(failure.value)
