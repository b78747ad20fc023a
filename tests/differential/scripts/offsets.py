"""Offsets by timestamp and by epoch, and a log start offset that moves."""

from typing import Any

from tests.differential.batches import TIMESTAMP, Row, batch
from tests.differential.script import Script
from tests.differential.scripts.requests import fetch, list_offsets, produce_fields

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def by_time(script: Script) -> None:
    topic = _timed(script, "timed")
    name = topic[0]
    for label, timestamp in [
        ("latest", LATEST),
        ("earliest", EARLIEST),
        ("exactly the first", TIMESTAMP + 1000),
        ("before the first", 0),
        ("between two batches", TIMESTAMP + 2500),
        ("inside a batch", TIMESTAMP + 5000),
        ("out of order in a batch", TIMESTAMP + 6500),
        ("the newest", TIMESTAMP + 9000),
        ("after the newest", TIMESTAMP + 9001),
        ("minus nine", -9),
    ]:
        list_offsets(script, label, name, timestamp)
    newest = script.era == "newest"
    for label, timestamp, first in [
        ("max timestamp", MAX_TIMESTAMP, 7),
        ("earliest local", EARLIEST_LOCAL, 8),
        ("latest tiered", LATEST_TIERED, 9),
        ("earliest pending upload", -6, 11),
    ]:
        list_offsets(script, f"{label}, this version", name, timestamp)
        if newest:
            list_offsets(script, label, name, timestamp, version=first)
            list_offsets(script, f"{label}, one too old", name, timestamp, version=first - 1)
    list_offsets(script, "read committed", name, LATEST, isolation_level=1)
    list_offsets(script, "unknown isolation level", name, LATEST, isolation_level=9)
    list_offsets(script, "unknown topic", script.topic("nobody"), LATEST)
    list_offsets(script, "unknown topic, minus nine", script.topic("nobody"), -9)
    list_offsets(script, "bad topic name", "bad name", LATEST)
    list_offsets(script, "unknown epoch, minus nine", name, -9, current_leader_epoch=3)
    list_offsets(script, "unknown partition", name, LATEST, partition=4)
    for epoch in (0, 3, -2):
        list_offsets(script, f"leader epoch {epoch}", name, LATEST, current_leader_epoch=epoch)
    list_offsets(script, "as a follower", name, LATEST, replica_id=99)
    list_offsets(script, "as a debug tool", name, LATEST, replica_id=-2)
    row = {"partition_index": 0, "timestamp": LATEST}
    twice = {"replica_id": -1, "topics": [{"name": name, "partitions": [row, row]}]}
    script.request("a partition twice", "list_offsets", twice)
    script.request("nothing asked", "list_offsets", {"replica_id": -1, "topics": []})


def of_an_empty_log(script: Script) -> None:
    name = script.topic("empty")
    script.make_topic(name)
    for label, timestamp in [
        ("latest", LATEST),
        ("earliest", EARLIEST),
        ("a time", TIMESTAMP),
        ("max timestamp", MAX_TIMESTAMP),
        ("earliest local", EARLIEST_LOCAL),
        ("latest tiered", LATEST_TIERED),
    ]:
        list_offsets(script, label, name, timestamp)


def by_epoch(script: Script) -> None:
    topic = _timed(script, "epochs")

    def ask(label: str, name: str, epoch: int, current: int = -1, partition: int = 0) -> None:
        row = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        fields = {"replica_id": -1, "topics": [{"topic": name, "partitions": [row]}]}
        script.request(label, "offset_for_leader_epoch", fields)

    for epoch in (0, 1, 5, -1):
        ask(f"epoch {epoch}", topic[0], epoch)
    for current in (0, 1, 7, -2):
        ask(f"current epoch {current}", topic[0], 0, current)
    ask("unknown topic", script.topic("nobody"), 0)
    ask("unknown partition", topic[0], 0, partition=3)
    script.request("nothing asked", "offset_for_leader_epoch", {"replica_id": -1, "topics": []})


def delete_records(script: Script) -> None:
    topic = _timed(script, "cut")
    name = topic[0]

    def ask(label: str, offset: int, partition: int = 0, name: str = name) -> Any:
        row = {"partition_index": partition, "offset": offset}
        fields = {"topics": [{"name": name, "partitions": [row]}], "timeout": 10000}
        return script.request(label, "delete_records", fields)

    ask("before three", 3)
    fetch(script, "below the start", topic, 1)
    fetch(script, "at the start", topic, 3)
    list_offsets(script, "the start moved", name, EARLIEST)
    list_offsets(script, "a time below the start", name, TIMESTAMP)
    ask("back again", 1)
    ask("beyond the end", 50)
    ask("minus two", -2)
    ask("unknown partition", 0, partition=3)
    ask("unknown topic", 0, name=script.topic("nobody"))
    ask("bad topic name", 0, name="bad name")
    ask("to the high watermark", -1)
    list_offsets(script, "empty now", name, EARLIEST)
    list_offsets(script, "no newest", name, MAX_TIMESTAMP)
    list_offsets(script, "the end stays", name, LATEST)
    fetch(script, "at the end", topic, 8)
    fetch(script, "before the end", topic, 7)
    compacted = script.topic("compacted")
    script.make_topic(compacted, configs={"cleanup.policy": "compact"})
    ask("a compacted topic", 0, name=compacted)
    both = script.topic("both")
    script.make_topic(both, configs={"cleanup.policy": "compact,delete"})
    ask("compacted and deleted", 0, name=both)
    row = {"partition_index": 0, "offset": 0}
    twice = {"topics": [{"name": both, "partitions": [row, row]}], "timeout": 10000}
    script.request("a partition twice", "delete_records", twice)
    script.request("nothing asked", "delete_records", {"topics": [], "timeout": 10000})


def _timed(script: Script, name: str) -> tuple[str, str]:
    """Offsets 0 to 7, at seconds 1 2 | 4 5 6 | 7 9 8."""
    full = script.topic(name)
    topic = (full, script.make_topic(full))
    for seconds in ((1, 2), (4, 5, 6), (7, 9, 8)):
        rows = [Row(b"v", b"k", timestamp=TIMESTAMP + second * 1000) for second in seconds]
        script.quietly("produce", produce_fields([(topic, [(0, batch(rows))])]))
    return topic
