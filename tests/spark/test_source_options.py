"""Options as Spark's Kafka source has them, and a plain sentence for each that is wrong."""

import pytest

from pyspark_riverrun.offsets import Position, Times, from_json, place, to_json
from pyspark_riverrun.options import BadOption, read_options, write_options
from riverrun.records.compression import Compression

CLUSTER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
READ = CLUSTER | {"subscribe": "a"}


def test_names_may_be_written_in_any_case() -> None:
    options = read_options(
        {"KAFKA.Bootstrap.Servers": "h:1,[::1]:2", "SUBSCRIBE": " a, b,a ", "minpartitions": "7"},
        is_streaming=False,
    )
    assert options.cluster.bootstrap == (("h", 1), ("::1", 2))
    assert options.subscription.topics == ("a", "b")
    assert options.min_partitions == 7


def test_a_batch_reads_all_and_a_stream_what_comes() -> None:
    batch = read_options(READ, is_streaming=False)
    assert (batch.starting, batch.ending) == (Position.EARLIEST, Position.LATEST)
    assert read_options(READ, is_streaming=True).starting is Position.LATEST
    assert batch.is_committed_only
    assert batch.fail_on_data_loss
    assert not batch.include_headers


def test_offsets_times_and_partitions_come_as_json() -> None:
    options = read_options(
        CLUSTER
        | {
            "assign": '{"a": [0, 2]}',
            "startingOffsets": '{"a": {"0": 23, "2": -2}}',
            "endingOffsetsByTimestamp": '{"a": {"0": 1000, "2": 2000}}',
        },
        is_streaming=False,
    )
    assert options.subscription.assignment == (place("a", 0), place("a", 2))
    assert options.starting == {place("a", 0): 23, place("a", 2): -2}
    assert options.ending == Times(
        everywhere=None, exact={place("a", 0): 1000, place("a", 2): 2000}
    )
    everywhere = read_options(READ | {"startingTimestamp": "1000"}, is_streaming=True)
    assert everywhere.starting == Times(everywhere=1000, exact={})


def test_offsets_in_checkpoints_round_trip() -> None:
    written = to_json({place("b", 0): 3, place("a", 10): 1, place("a", 2): 0})
    assert written == {"a": {"2": 0, "10": 1}, "b": {"0": 3}}
    assert to_json(from_json(written)) == written


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "nowhere", "subscribe": "a"}, "'nowhere' is not an address"),
        (CLUSTER, "exactly one of subscribe, subscribePattern and assign"),
        (READ | {"assign": '{"a": [0]}'}, "given: subscribe and assign"),
        (CLUSTER | {"subscribe": " , "}, "names no topic"),
        (CLUSTER | {"subscribePattern": "a("}, "no regular expression"),
        (CLUSTER | {"assign": "a"}, "assign: no JSON like"),
        (CLUSTER | {"assign": '{"a": 0}'}, "assign: the partitions of a are a list"),
        (READ | {"startingOffsets": "first"}, "startingOffsets: no JSON"),
        (READ | {"startingOffsets": '{"a": {"0": -3}}'}, "-3 for a-0 is no offset"),
        (READ | {"startingOffsets": '{"a": {"0": "1"}}'}, "no whole number"),
        (READ | {"startingOffsets": "latest"}, "cannot be latest"),
        (READ | {"endingOffsets": "earliest"}, "cannot be earliest"),
        (READ | {"endingOffsets": '{"a": {"0": -2}}'}, "cannot be earliest"),
        (READ | {"minPartitions": "many"}, "minPartitions is a whole number, not 'many'"),
        (READ | {"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition is at least 1"),
        (READ | {"failOnDataLoss": "perhaps"}, "failOnDataLoss is true or false"),
        (READ | {"maxTriggerDelay": "soon"}, "a duration like 15m"),
        (
            READ | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "larger than maxOffsetsPerTrigger",
        ),
        (READ | {"startingOfsets": "earliest"}, "did you mean startingOffsets"),
        (READ | {"kafka.group.ids": "g"}, "did you mean kafka.group.id"),
        (READ | {"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        (READ | {"kafka.security.protocol": "SSL"}, "PLAINTEXT only"),
        (READ | {"kafka.sasl.jaas.config": "x"}, "PLAINTEXT only"),
        (READ | {"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
    ],
)
def test_what_is_wrong_is_said_by_its_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption) as failure:
        read_options(options, is_streaming=False)
    assert words in str(failure.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(BadOption, match="a stream has no end"):
        read_options(READ | {"endingOffsets": "latest"}, is_streaming=True)


def test_options_of_others_do_not_disturb() -> None:
    strange = {"path": "x", "mergeSchema": "true", "kafka.linger.ms": "5", "kafka.retries": "3"}
    read_options(READ | strange, is_streaming=False)
    write_options(CLUSTER | strange | {"checkpointLocation": "y"})


def test_writers_take_the_settings_of_a_producer() -> None:
    options = write_options(
        CLUSTER | {"topic": "t", "kafka.compression.type": "zstd", "kafka.batch.size": "1000"}
    )
    assert options.compression is Compression.ZSTD
    assert (options.topic, options.batch_bytes, options.acks) == ("t", 1000, -1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.compression.type": "rar"}, "is one of none, gzip, snappy, lz4, zstd"),
        ({"kafka.acks": "2"}, "kafka.acks is all, 1 or 0"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "needs kafka.acks=all"),
        ({"kafka.transactional.id": "x"}, "has no transactions yet"),
        ({"topic": " "}, "topic is empty"),
        ({"topics": "t"}, "did you mean topic"),
    ],
)
def test_a_writer_says_what_is_wrong(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption) as failure:
        write_options(CLUSTER | options)
    assert words in str(failure.value)
