"""confluent-kafka (librdkafka): records, positions, time and idempotence."""

import itertools
import threading

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.compatibility.confluent import (
    consumer,
    offset_of,
    partition_of,
    producer,
    read,
    read_partition,
    send,
    value_of,
)
from tests.compatibility.conftest import MakeTopic
from tests.compatibility.data import TIMESTAMP
from tests.processes import Server


def test_large_record_is_delivered(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic(configs={"max.message.bytes": "12000000"})
    value = bytes(range(256)) * 4 * 8192  # 8 MiB
    send(server.bootstrap, topic, [b"small", value, b"after"], message_max_bytes=12000000)
    with consumer(server.bootstrap, topic, fetch_message_max_bytes=1000) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert [message.value() for message in read(reader, 3)] == [b"small", value, b"after"]


def test_record_above_the_limit_is_rejected(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic(configs={"max.message.bytes": "1000"})
    failed: list[KafkaError | None] = []
    sender = producer(server.bootstrap)
    sender.produce(topic, b"x" * 2000, on_delivery=lambda error, _: failed.append(error))
    sender.flush(30)
    assert failed[0] is not None and failed[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    send(server.bootstrap, topic, [b"fits"])
    assert read_partition(server.bootstrap, topic, 1)[0].offset() == 0


def test_create_time_is_kept(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    sender = producer(server.bootstrap)
    for second in (3, 1, 2):
        sender.produce(topic, b"%d" % second, timestamp=TIMESTAMP + second * 1000)
    sender.flush(30)
    found = read_partition(server.bootstrap, topic, 3)
    kind = confluent_kafka.TIMESTAMP_CREATE_TIME
    expected = [(kind, TIMESTAMP + second * 1000) for second in (3, 1, 2)]
    assert [message.timestamp() for message in found] == expected


def test_log_append_time_is_set_by_the_broker(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic(configs={"message.timestamp.type": "LogAppendTime"})
    sender = producer(server.bootstrap)
    for codec_value in (b"a", b"b"):
        sender.produce(topic, codec_value, timestamp=TIMESTAMP)
    sender.flush(30)
    for message in read_partition(server.bootstrap, topic, 2):
        kind, timestamp = message.timestamp()
        assert kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
        assert timestamp > TIMESTAMP


def test_offsets_are_found_by_timestamp(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    sender = producer(server.bootstrap)
    for number in range(50):
        sender.produce(topic, b"%d" % number, timestamp=TIMESTAMP + number * 1000)
        if number % 10 == 0:
            sender.flush(30)
    sender.flush(30)
    with consumer(server.bootstrap, topic) as reader:

        def at(milliseconds: int) -> int:
            wanted = TopicPartition(topic, 0, TIMESTAMP + milliseconds)
            found: int = reader.offsets_for_times([wanted], timeout=10)[0].offset
            return found

        assert at(-5000) == 0
        assert at(0) == 0
        assert at(17000) == 17
        assert at(17001) == 18
        assert at(49000) == 49
        assert at(49001) == confluent_kafka.OFFSET_END
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 50)


def test_seek_moves_back_and_forth(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    send(server.bootstrap, topic, [b"%d" % number for number in range(100)])
    with consumer(server.bootstrap, topic) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert [message.offset() for message in read(reader, 3)] == [0, 1, 2]
        for offset in (90, 5, 42):
            reader.seek(TopicPartition(topic, 0, offset))
            assert read(reader, 1)[0].value() == b"%d" % offset


def test_read_beyond_the_end_resets_the_position(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    send(server.bootstrap, topic, [b"a", b"b"])
    with consumer(server.bootstrap, topic) as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])
        assert read(reader, 1)[0].offset() == 0
    with consumer(server.bootstrap, topic, auto_offset_reset="error") as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])
        message = None
        while message is None:
            message = reader.poll(1)
        error = message.error()
        assert error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET


def test_idempotent_producer_writes_in_order(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    values = [b"%d" % number for number in range(20000)]
    delivered = send(server.bootstrap, topic, values, enable_idempotence=True, linger_ms=0)
    assert [message.offset() for message in delivered] == list(range(20000))
    found = read_partition(server.bootstrap, topic, 20000)
    assert [message.value() for message in found] == values


def test_concurrent_producers_never_share_an_offset(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    offsets: dict[int, list[int]] = {}

    def run(number: int) -> None:
        values = [b"%d:%d" % (number, count) for count in range(2000)]
        done = send(server.bootstrap, topic, values, linger_ms=0, batch_num_messages=20)
        offsets[number] = [offset_of(message) for message in done]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*offsets.values())) == list(range(8000))
    found = read_partition(server.bootstrap, topic, 8000)
    for number in range(4):
        own = [message for message in found if value_of(message).startswith(b"%d:" % number)]
        assert [int(value_of(message)[2:]) for message in own] == list(range(2000))
        assert [message.offset() for message in own] == offsets[number]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_all_acks_settings(acks: str, server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    send(server.bootstrap, topic, [b"%d" % number for number in range(500)], acks=acks)
    found = read_partition(server.bootstrap, topic, 500)
    assert [message.offset() for message in found] == list(range(500))


def test_murmur2_partitioner_is_consistent(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=8)
    places: dict[bytes | None, set[int]] = {}
    sender = producer(server.bootstrap, partitioner="murmur2_random")

    def done(error: object, message: confluent_kafka.Message) -> None:
        assert error is None, error
        places.setdefault(message.key(), set()).add(partition_of(message))

    for number in range(200):
        sender.produce(topic, b"v", b"key-%d" % (number % 20), on_delivery=done)
    sender.flush(30)
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len({min(partitions) for partitions in places.values()}) > 3


def test_topic_is_created_by_the_first_write(server: Server, make_name: object) -> None:
    topic = make_name()  # type: ignore[operator]
    assert [message.offset() for message in send(server.bootstrap, topic, [b"first"])] == [0]


def test_compacted_topic_rejects_records_without_keys(
    server: Server, make_topic: MakeTopic
) -> None:
    topic = make_topic(configs={"cleanup.policy": "compact"})
    failed: list[KafkaError | None] = []
    sender = producer(server.bootstrap, retries=0)
    sender.produce(topic, b"no key", on_delivery=lambda error, _: failed.append(error))
    sender.flush(30)
    assert failed[0] is not None and failed[0].code() == KafkaError.INVALID_RECORD


def test_reader_sees_committed_transactions_only(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic()
    sender = producer(server.bootstrap, transactional_id=f"{topic}-writer")
    sender.init_transactions(30)
    for value, is_commit in ((b"one", True), (b"two", False), (b"three", True)):
        sender.begin_transaction()
        sender.produce(topic, value, partition=0)
        if is_commit:
            sender.commit_transaction(30)
        else:
            sender.flush(30)  # the record is in the log before it is aborted
            sender.abort_transaction(30)
    with consumer(server.bootstrap, topic, isolation_level="read_committed") as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        found = read(reader, 2)
    assert [value_of(message) for message in found] == [b"one", b"three"]


def test_many_partitions_in_one_fetch(server: Server, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=60)
    sender = producer(server.bootstrap)
    for number in range(600):
        sender.produce(topic, b"%d" % number, partition=number % 60)
    sender.flush(30)
    with consumer(server.bootstrap, topic) as reader:
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(60)])
        found = read(reader, 600)
    assert sorted(int(value_of(message)) for message in found) == list(range(600))
