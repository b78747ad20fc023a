"""Fetch: offsets, sizes, waits and sessions, with their errors."""

from typing import Any

from tests.differential.batches import Row, batch
from tests.differential.script import Script
from tests.differential.scripts.producing import STRANGER
from tests.differential.scripts.requests import NO_ID, fetch, fetch_fields, produce_fields

Topic = tuple[str, str]


def positions(script: Script) -> None:
    topic = _filled(script, "positions", [3, 2, 4])
    fetch(script, "from the start", topic, 0)
    fetch(script, "inside the first batch", topic, 1)
    fetch(script, "at the border", topic, 3)
    fetch(script, "inside the last batch", topic, 8)
    fetch(script, "at the end", topic, 9)
    fetch(script, "beyond the end", topic, 10)
    fetch(script, "far beyond the end", topic, 10**12)
    fetch(script, "negative offset", topic, -1)
    fetch(script, "very negative offset", topic, -5)
    fetch(script, "read committed", topic, 0, isolation_level=1)
    fetch(script, "unknown isolation level", topic, 9, isolation_level=5)
    fetch(script, "unknown partition", topic, 0, partition=1)
    fetch(script, "negative partition", topic, 0, partition=-1)
    fetch(script, "unknown topic", (script.topic("nobody"), STRANGER), 0)
    fetch(script, "no topic id", (topic[0], NO_ID), 0)
    fetch(script, "no topics of a full fetch", topic, 0, session_epoch=-1)
    script.request("nothing asked", "fetch", fetch_fields([]))
    script.request("no partitions", "fetch", fetch_fields([(topic, [])]))


def sizes(script: Script) -> None:
    topic = _filled(script, "sizes", [1, 1, 1, 1], size=1000)
    fetch(script, "two batches fit", topic, 0, max_bytes=2500)
    fetch(script, "partition limit", topic, 0, more={"partition_max_bytes": 1500})
    fetch(script, "smaller than a batch", topic, 0, max_bytes=10)
    fetch(script, "partition limit of one byte", topic, 0, more={"partition_max_bytes": 1})
    fetch(script, "limit of zero", topic, 0, max_bytes=0)
    fetch(script, "partition limit of zero", topic, 0, more={"partition_max_bytes": 0})
    fetch(script, "negative limit", topic, 0, max_bytes=-1)
    second = _filled(script, "second", [1, 1], size=1000)
    row = {"partition": 0, "fetch_offset": 0}
    for limit in (10, 1100, 2300, 100000):
        fields = fetch_fields([(topic, [row]), (second, [row])], max_bytes=limit)
        script.request(f"two topics, {limit} bytes", "fetch", fields)
    small = {**row, "partition_max_bytes": 5}
    fields = fetch_fields([(topic, [small]), (second, [small])])
    script.request("two topics, small partitions", "fetch", fields)
    at_end = {"partition": 0, "fetch_offset": 4}
    fields = fetch_fields([(topic, [at_end]), (second, [row])], max_bytes=10)
    script.request("the first is at its end", "fetch", fields)


def epochs(script: Script) -> None:
    topic = _filled(script, "epochs", [2, 2])
    for epoch in (0, 1, -1, 7, -2):
        fetch(script, f"current epoch {epoch}", topic, 0, more={"current_leader_epoch": epoch})
    for epoch in (0, 1, -1, 5):
        fetch(script, f"last epoch {epoch}", topic, 2, more={"last_fetched_epoch": epoch})
    fetch(script, "as an unknown follower", topic, 0, replica_id=99)
    fetch(script, "as the leader", topic, 0, replica_id=1)
    fetch(script, "as a consumer from a debug tool", topic, 0, replica_id=-2)


def waiting(script: Script) -> None:
    topic = _filled(script, "waiting", [1])
    row = {"partition": 0, "fetch_offset": 1}
    fetch(script, "waits in vain", topic, 1, max_wait=150)
    fields = fetch_fields([(topic, [row])], max_wait=10000)
    finish = script.begin("woken by a record", "fetch", fields, on="waiter")
    _put(script, topic, [1])
    finish()
    two = batch([b"x" * 500])
    fields = fetch_fields([(topic, [{"partition": 0, "fetch_offset": 2}])], max_wait=10000)
    fields["min_bytes"] = len(two) + 1
    finish = script.begin("woken by enough bytes", "fetch", fields, on="waiter")
    script.quietly("produce", produce_fields([(topic, [(0, two)])]))
    script.quietly("produce", produce_fields([(topic, [(0, two)])]))
    finish()
    fetch(script, "enough at once", topic, 0, max_wait=10000, min_bytes=100)
    fetch(script, "never enough", topic, 0, max_wait=100, min_bytes=1 << 20)
    fetch(script, "no least", topic, 4, max_wait=10000, min_bytes=0)
    fetch(script, "an error answers at once", topic, 99, max_wait=10000)
    name = script.topic("dies")
    dying = (name, script.make_topic(name))
    fields = fetch_fields([(dying, [{"partition": 0, "fetch_offset": 0}])], max_wait=10000)
    finish = script.begin("the topic is deleted meanwhile", "fetch", fields, on="waiter")
    gone = {"topics": [{"name": name, "topic_id": None}], "timeout": 10000}
    script.quietly("delete_topics", gone, version=6)
    finish()


def sessions(script: Script) -> None:
    if not script.at_least("fetch", 7):
        return
    first = _filled(script, "first", [1, 1], partitions=2)
    second = _filled(script, "second", [1])
    rows = [{"partition": 0, "fetch_offset": 0}, {"partition": 1, "fetch_offset": 0}]
    made = script.request("opened", "fetch", fetch_fields([(first, rows)], session_epoch=0))
    session = made["session_id"]
    assert session > 0, made

    def go_on(label: str, epoch: int, topics: Any = (), forgotten: Any = (), who: int = 0) -> Any:
        fields = fetch_fields(
            list(topics),
            session_id=who or session,
            session_epoch=epoch,
            forgotten=list(forgotten),
        )
        return script.request(label, "fetch", fields)

    go_on("the same again", 1)
    advanced = [{"partition": 0, "fetch_offset": 2}]
    go_on("one advanced", 2, [(first, advanced)])
    go_on("nothing new", 3)
    _put(script, first, [1])
    go_on("something new", 4)
    go_on("wrong epoch", 9)
    go_on("an old epoch", 2)
    go_on("still open", 5, [(first, [{"partition": 0, "fetch_offset": 3}])])
    go_on("one added", 6, [(second, [{"partition": 0, "fetch_offset": 0}])])
    go_on("one unknown added", 7, [(second, [{"partition": 5, "fetch_offset": 0}])])
    go_on("one forgotten", 8, forgotten=[(second, [0, 5])])
    go_on("forgotten twice", 9, forgotten=[(second, [0])])
    go_on("out of range", 10, [(first, [{"partition": 0, "fetch_offset": 50}])])
    go_on("out of range again", 11)
    go_on("back in range", 12, [(first, [{"partition": 0, "fetch_offset": 2}])])
    go_on("unknown session", 1, who=123456)
    go_on("unknown session, first epoch", 0, who=123456)
    go_on("closed", -1)
    go_on("after the end", 13)
    unknown = [(("nobody", STRANGER), rows)]
    go_on("opened with an unknown topic", 0, unknown)
    two = script.request("with no topics", "fetch", fetch_fields([], session_epoch=0))
    if two["session_id"]:
        go_on("grows", 1, [(first, rows)], who=two["session_id"])


def deleted_topic(script: Script) -> None:
    topic = _filled(script, "gone", [2])
    script.quietly(
        "delete_topics",
        {"topics": [{"name": topic[0], "topic_id": None}], "timeout": 10000},
        version=6,
    )
    script.wait_without_topic(topic[0])
    fetch(script, "a deleted topic", topic, 0)
    again = (topic[0], script.make_topic(topic[0]))
    fetch(script, "by the old id", topic, 0)
    fetch(script, "by the new id", again, 0)


def _filled(
    script: Script, name: str, counts: list[int], *, size: int = 1, partitions: int = 1
) -> Topic:
    full = script.topic(name)
    topic = (full, script.make_topic(full, partitions=partitions))
    _put(script, topic, counts, size)
    return topic


def _put(script: Script, topic: Topic, counts: list[int], size: int = 1) -> None:
    for number, count in enumerate(counts):
        rows = [Row(b"%d" % number * size, b"%d" % at) for at in range(count)]
        made = script.quietly("produce", produce_fields([(topic, [(0, batch(rows))])]))
        code = made["responses"][0]["partition_responses"][0]["error_code"]
        assert code == "NONE", made
