"""Transactions in partitions: produced batches, markers, read_committed, and offsets of groups.

Produce has transaction version 2 from version 12 of the API on, TxnOffsetCommit from version 5 on.
Times of markers are those of the server's clock, so they are not recorded.
"""

from collections.abc import Callable
from typing import Any

from tests.differential.batches import CONTROL, TIMESTAMP, TRANSACTIONAL, batch, read_batches
from tests.differential.script import Script
from tests.differential.scripts.producing import STRANGER
from tests.differential.scripts.requests import (
    fetch_fields,
    offset_fetch,
    produce,
    produce_fields,
)
from tests.differential.scripts.transactions import Producer, is_settled

LATEST = -1
READ_COMMITTED = 1
IMPLICIT_SINCE = 12
Topic = tuple[str, str]


def data(
    producer: Producer, sequence: int, *, epoch: int | None = None, attributes: int = TRANSACTIONAL
) -> bytes:
    return batch(
        [b"one", b"two"],
        attributes=attributes,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch if epoch is None else epoch,
        base_sequence=sequence,
    )


def produced(script: Script) -> None:
    topic = _topic(script)
    producer = Producer.start(script, "app")
    producer.init("start")
    producer.init("the next epoch")
    send = _sender(script, producer, topic)
    for version in (9, 10, 11):
        send(f"not in the transaction, version {version}", data(producer, 0), version=version)
    producer.add("two partitions", (topic[0], [0, 1]))
    send("the first batch", data(producer, 0))
    send("the second batch", data(producer, 2))
    send("a duplicate", data(producer, 0))
    send("a gap", data(producer, 8))
    send("an earlier epoch", data(producer, 4, epoch=producer.epoch - 1))
    send("a plain batch", data(producer, 4, attributes=0))
    plain = produce_fields([(topic, [(0, data(producer, 4, attributes=0))])])
    script.request("a plain batch without the id", "produce", plain)
    produce(script, "without the transactional id", topic, data(producer, 4))
    send("another transactional id", data(producer, 4), transactional_id="nobody")
    other = Producer(script, "other", producer.producer_id + 1000, 0)
    two = produce_fields(
        [(topic, [(0, data(producer, 4)), (1, data(other, 0))])], -1, producer.name
    )
    script.request("two producers", "produce", two)
    send("a plain batch of nobody", batch([b"plain"]))
    _read_both(script, "open", topic)
    producer.end("commit", committed=True)
    producer.describe("committed", "CompleteCommit")
    _read_both(script, "committed", topic)
    send("a duplicate after the end", data(producer, 4), version=11)
    send("after the end", data(producer, 6), version=11)
    send("a later epoch", data(producer, 0, epoch=producer.epoch + 1))


def implicit(script: Script) -> None:
    """Clients of version 2 add no partitions."""
    topic = _topic(script)
    producer = Producer.start(script, "app")
    producer.init("start")
    send = _sender(script, producer, topic)
    newest = max(script.version("produce"), IMPLICIT_SINCE)
    send("sequence above 0", data(producer, 3), version=newest)
    send("the first batch", data(producer, 0), version=newest)
    send("the second batch", data(producer, 2), version=newest)
    producer.end("abort", committed=False, version=5)
    producer.describe("aborted", "CompleteAbort")
    _read_both(script, "aborted", topic)
    old = Producer(script, producer.name, producer.producer_id, producer.epoch - 1)
    send("the epoch before", data(old, 4), version=newest)
    send("sequence above 0 of the next epoch", data(producer, 4), version=newest)
    send("the next transaction", data(producer, 0), version=newest)
    producer.end("commit", committed=True, version=5)
    producer.describe("committed", "CompleteCommit")
    _read_both(script, "committed", topic)


def markers(script: Script) -> None:
    topic = _topic(script)
    producer = Producer.start(script, "app")
    producer.init("start")
    producer.init("the next epoch")
    send = _sender(script, producer, topic)

    def mark(label: str, *, epoch: int = 0, version: int | None = None, **more: Any) -> None:
        chosen = script.version("write_txn_markers") if version is None else version
        name, index = more.pop("name", topic[0]), more.pop("index", 0)
        row = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch + epoch,
            "transaction_result": False,
            "coordinator_epoch": 0,
            "transaction_version": 0,
            "topics": [{"name": name, "partition_indexes": [index]}],
            **more,
        }
        script.request(label, "write_txn_markers", {"markers": [row]}, version=chosen)

    describe = _describer(script, topic)
    describe("nothing yet")
    mark("without data")
    describe("a marker alone")
    producer.add("the partition", (topic[0], [0]))
    send("a batch", data(producer, 0))
    describe("open")
    mark("an unknown topic", name=script.topic("nobody"))
    mark("an unknown partition", index=9)
    mark("an earlier epoch", epoch=-1)
    mark("an earlier coordinator", coordinator_epoch=-1)
    mark("the same epoch in version 2", transaction_version=2, version=2)
    describe("still open")
    mark("the same epoch", coordinator_epoch=3)
    describe("ended")
    mark("a replaced coordinator", coordinator_epoch=2)
    mark("a retry in version 2", transaction_version=2, version=2, coordinator_epoch=3)
    mark("a later epoch", epoch=1, coordinator_epoch=3)
    mark("the epoch before it", coordinator_epoch=3)
    _read_both(script, "at the end", topic)
    script.request("no markers", "write_txn_markers", {"markers": []})
    unknown = {"topics": [{"name": script.topic("nobody"), "partition_indexes": [0]}]}
    script.request("an unknown topic", "describe_producers", unknown)
    script.request("no topics", "describe_producers", {"topics": []})


def offsets(script: Script) -> None:
    script.wait_for_coordinator()
    topic = _topic(script)
    group = script.topic("group")
    producer = Producer.start(script, "app")
    producer.init("start")
    nobody = (script.topic("nobody"), STRANGER)

    def commit(label: str, *rows: tuple[str, int, int, str | None], **more: Any) -> None:
        version = more.pop("version", None)
        fields = {
            "transactional_id": producer.name,
            "group_id": group,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                            "committed_metadata": words,
                        }
                    ],
                }
                for name, index, offset, words in rows
            ],
            **more,
        }
        script.request(label, "txn_offset_commit", fields, version=version, settled=is_settled)

    row = (topic[0], 0, 5, "words")
    for version in (3, 4):
        commit(f"not in the transaction, version {version}", row, version=version)
    producer.add_offsets("the group", group)
    commit("one offset", row)
    commit("another", (topic[0], 1, 7, None))
    commit("an unknown topic", (nobody[0], 0, 1, None))
    commit("an unknown partition", (topic[0], 9, 1, None), row)
    commit("too much metadata", (topic[0], 0, 1, "x" * 4097))
    commit("no topics")
    commit("an empty group", row, group_id="")
    commit("an unknown group with a generation", row, group_id="x", generation_id=1, version=5)
    commit("an unknown member", row, generation_id=0, member_id="m", version=4)
    commit("an earlier epoch", row, producer_epoch=producer.epoch - 1)
    offset_fetch(script, "pending", group, [(topic, [0, 1])])
    offset_fetch(script, "pending, stable ones", group, [(topic, [0, 1])], require_stable=True)
    offset_fetch(script, "pending, all stable ones", group, None, require_stable=True)
    producer.end("commit", committed=True)
    producer.describe("committed", "CompleteCommit")
    offset_fetch(script, "committed", group, [(topic, [0, 1])], require_stable=True)
    producer.add_offsets("the group again", group)
    commit("to be aborted", (topic[0], 0, 50, None))
    producer.end("abort", committed=False)
    producer.describe("aborted", "CompleteAbort")
    offset_fetch(script, "aborted", group, [(topic, [0, 1])], require_stable=True)


def _topic(script: Script) -> Topic:
    name = script.topic("t")
    return name, script.make_topic(name, partitions=2)


def _sender(script: Script, producer: Producer, topic: Topic) -> Callable[..., None]:
    def send(label: str, records: bytes, **options: Any) -> None:
        version = options.pop("version", min(script.version("produce"), 11))
        name = options.pop("transactional_id", producer.name)
        fields = produce_fields([(topic, [(0, records)])], -1, name)
        if version >= IMPLICIT_SINCE:
            # Kafka repeats the question to the coordinator for a short time only.
            script.request(label, "produce", fields, version=version, settled=is_settled)
        else:
            script.request(label, "produce", fields, version=version)

    return send


def _read_both(script: Script, label: str, topic: Topic) -> None:
    for level in (0, READ_COMMITTED):
        fields = fetch_fields([(topic, [{"partition": 0, "fetch_offset": 0}])])
        fields["isolation_level"] = level
        script.request(f"{label}: fetch, level {level}", "fetch", fields, only=_timeless)
        # Not by the newest timestamp: records of one millisecond are equally new.
        for timestamp in (LATEST, 0):
            row = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
            script.request(
                f"{label}: offsets at {timestamp}, level {level}",
                "list_offsets",
                {
                    "replica_id": -1,
                    "isolation_level": level,
                    "topics": [{"name": topic[0], "partitions": [row]}],
                    "timeout": 5000,
                },
                version=max(script.version("list_offsets"), 7),
                only=_without_clock,
            )


def _without_clock(response: Any) -> Any:
    for topic in response["topics"]:
        for partition in topic["partitions"]:
            if partition["timestamp"] > TIMESTAMP:
                partition["timestamp"] = "<time>"
    return response


def _timeless(response: Any) -> Any:
    """Remove the times of markers."""
    for topic in response["responses"]:
        for partition in topic["partitions"]:
            found = read_batches(partition["records"] or b"")
            for one in found:
                if one["attributes"] & CONTROL:
                    one["max_timestamp"] = "<time>"
                    one["records"] = [[row[0], "<time>", *row[2:]] for row in one["records"]]
            partition["records"] = found
    return response


def _describer(script: Script, topic: Topic) -> Callable[[str], None]:
    def only(response: Any) -> Any:
        for row in response["topics"]:
            for partition in row["partitions"]:
                for producer in partition["active_producers"]:
                    producer["last_timestamp"] = producer["last_timestamp"] > 0
        return response

    def describe(label: str) -> None:
        fields = {"topics": [{"name": topic[0], "partition_indexes": [0, 9]}]}
        script.request(label, "describe_producers", fields, only=only)

    return describe


SCRIPTS: dict[str, Callable[[Script], None]] = {
    "transactions-produced": produced,
    "transactions-implicit": implicit,
    "transactions-markers": markers,
    "transactions-offsets": offsets,
}
