"""Produce: valid batches in every codec, and batches that are invalid in one way each."""

from collections.abc import Mapping

from tests.differential.batches import CONTROL, TIMESTAMP, TRANSACTIONAL, Row, batch, old_message
from tests.differential.script import Script
from tests.differential.scripts.requests import NO_ID, fetch, produce, produce_fields

STRANGER = "11111111-2222-3333-4444-555555555555"
GOOD = batch([Row(b"v", b"k"), Row(None, b"k"), Row(b"w", None, (("h", b"1"), ("n", None)))])


def good(script: Script) -> None:
    topic = _topic(script, "good", partitions=2)
    for acks in (-1, 1):
        produce(script, f"acks={acks}", topic, GOOD, acks=acks)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        rows = [Row(b"%d" % number * 50, b"key") for number in range(5)]
        produce(script, codec, topic, batch(rows, codec=codec))
    produce(script, "times out of order", topic, batch(_at(5, 1, 9, 3)))
    produce(script, "empty value, empty key", topic, batch([Row(b"", b"")]))
    produce(script, "a base offset of its own", topic, batch([b"x"], base_offset=77))
    first, second = script.topic("good"), _topic(script, "second")
    several = produce_fields(
        [((first, topic[1]), [(0, GOOD), (1, GOOD)]), (second, [(0, GOOD), (7, GOOD)])]
    )
    script.request("several partitions, one unknown", "produce", several)
    quiet = produce_fields([(topic, [(1, GOOD)])], acks=0)
    script.connections["main"].send("produce", script.version("produce"), quiet)
    produce(script, "after one that is not answered", topic, GOOD, partition=1)
    fetch(script, "everything", topic, 0)
    fetch(script, "the other partition", topic, 0, partition=1)


def unknown(script: Script) -> None:
    topic = _topic(script, "known")
    produce(script, "unknown topic", (script.topic("nobody"), STRANGER), GOOD)
    produce(script, "bad topic name", ("bad name", STRANGER), GOOD)
    produce(script, "no topic id", (topic[0], NO_ID), GOOD)
    for partition in (1, -1):
        produce(script, f"partition {partition}", topic, GOOD, partition=partition)
    for acks in (2, -2):
        produce(script, f"acks={acks}", topic, GOOD, acks=acks)
    script.request("no topics", "produce", produce_fields([]))
    script.request("no partitions", "produce", produce_fields([(topic, [])]))
    script.wait_for_coordinator()
    internal = script.wait_for_topic("__consumer_offsets", 50)
    produce(script, "internal topic", ("__consumer_offsets", internal), GOOD)
    fetch(script, "nothing was written", topic, 0)


def broken(script: Script) -> None:
    topic = _topic(script, "broken")
    rows = [b"one", b"two", b"three"]
    good = batch(rows)
    cases = {
        "no bytes": b"",
        "wrong crc": batch(rows, crc_xor=1),
        "two batches": good + good,
        "cut short": good[:-3],
        "header alone": good[:61],
        "part of a header": good[:30],
        "length too small": batch(rows, length_add=-5),
        "length too large": batch(rows, length_add=5),
        "negative length": batch(rows, length_add=-1000),
        "count too large": batch(rows, count=4),
        "count too small": batch(rows, count=2),
        "count of zero": batch(rows, count=0),
        "count negative": batch(rows, count=-1),
        "last offset delta too large": batch(rows, last_offset_delta=9),
        "last offset delta negative": batch(rows, last_offset_delta=-1),
        "no records": batch([]),
        "control batch": batch(rows, attributes=CONTROL),
        "transactional without id": batch(
            rows, attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0
        ),
        "unused attribute bits": batch(rows, attributes=1 << 9),
        "offset deltas not from zero": batch(rows, delta_of=lambda index: index + 5),
        "offset deltas all zero": batch(rows, delta_of=lambda index: 0),
        "magic 3": batch(rows, magic=3),
        "magic 1": old_message(b"old", magic=1),
        "magic 0": old_message(b"old", magic=0),
        "max timestamp too small": batch(_at(1, 5), max_timestamp=TIMESTAMP),
        "negative timestamp": batch([Row(b"x", timestamp=-1)]),
        "very negative timestamp": batch([Row(b"x", timestamp=-5000)]),
        "producer without sequence": batch(rows, producer_id=5, producer_epoch=0),
        "sequence without producer": batch(rows, base_sequence=4),
    }
    for label, records in cases.items():
        produce(script, label, topic, records)
    fields = produce_fields([(topic, [(0, batch(rows, crc_xor=1))])])
    script.request("a good one goes on", "produce", produce_fields([(topic, [(0, good)])]))
    script.request("a bad one again", "produce", fields)
    fetch(script, "what was taken", topic, 0)


def broken_inside(script: Script) -> None:
    """Batches that are invalid only after decompression; later batches must be accepted."""
    rows = [b"one", b"two", b"three"]
    cases = {
        "unknown codec": batch(rows, attributes=5),
        "not really gzip": batch(rows, attributes=1),
        "deltas wrong inside gzip": batch(rows, codec="gzip", delta_of=lambda index: 0),
        "count wrong inside gzip": batch(rows, codec="gzip", count=5, last_offset_delta=4),
    }
    for label, records in cases.items():
        topic = _topic(script, label.replace(" ", "-"))
        produce(script, label, topic, records)


def limits(script: Script) -> None:
    small = _topic(script, "small", {"max.message.bytes": "200"})
    produce(script, "fits", small, batch([b"x" * 100]))
    produce(script, "too large", small, batch([b"x" * 300]))
    produce(script, "large, but compressed", small, batch([b"x" * 300], codec="gzip"))
    exact = 200 - len(batch([b""])) - 2
    produce(script, "exactly the limit", small, batch([b"x" * exact]))
    produce(script, "one above the limit", small, batch([b"x" * (exact + 1)]))
    fetch(script, "what fitted", small, 0)
    timely = _topic(script, "timely", {"message.timestamp.after.max.ms": "1000"})
    produce(script, "far in the future", timely, batch([Row(b"x", timestamp=TIMESTAMP * 2)]))
    produce(script, "past", timely, batch([b"x"]))
    produce(
        script,
        "one of three in the future",
        timely,
        batch([Row(b"a"), Row(b"b", timestamp=TIMESTAMP * 2), Row(b"c")]),
    )
    strict = _topic(script, "strict", {"message.timestamp.before.max.ms": "1000"})
    produce(script, "too old", strict, batch([b"x"]))
    fetch(script, "nothing came through", strict, 0)


def compacted(script: Script) -> None:
    topic = _topic(script, "compacted", {"cleanup.policy": "compact"})
    produce(script, "with keys", topic, batch([Row(b"v", b"k"), Row(None, b"k")]))
    produce(script, "without key", topic, batch([Row(b"v")]))
    produce(script, "second without key", topic, batch([Row(b"a", b"k"), Row(b"b")]))
    produce(script, "none with key", topic, batch([Row(b"a"), Row(b"b"), Row(b"c")]))
    produce(script, "compressed without key", topic, batch([Row(b"a")], codec="lz4"))
    produce(script, "empty key is a key", topic, batch([Row(b"a", b"")]))
    fetch(script, "what came through", topic, 0)


def append_time(script: Script) -> None:
    topic = _topic(script, "append", {"message.timestamp.type": "LogAppendTime"})
    produce(script, "plain", topic, batch([b"a", b"b"]))
    produce(script, "compressed", topic, batch([b"a", b"b"], codec="gzip"))
    produce(script, "from the future", topic, batch([Row(b"x", timestamp=TIMESTAMP * 2)]))
    fetch(script, "stamped", topic, 0)


def recompressed(script: Script) -> None:
    rows = [Row(b"%d" % number * 40, b"k%d" % number) for number in range(4)]
    for codec in ("gzip", "snappy", "lz4", "zstd", "uncompressed"):
        topic = _topic(script, codec, {"compression.type": codec})
        produce(script, f"plain to {codec}", topic, batch(rows))
        produce(script, f"zstd to {codec}", topic, batch(rows, codec="zstd"))
        produce(script, f"gzip to {codec}", topic, batch(rows, codec="gzip"))
        fetch(script, f"recompressed to {codec}", topic, 0)


def idempotent(script: Script) -> None:
    topic = _topic(script, "once")
    fields = {"transactional_id": None, "transaction_timeout": 60000}
    given = script.request("a producer id", "init_producer_id", fields)
    other = script.request("another producer id", "init_producer_id", fields)
    assert given["producer_id"] != other["producer_id"], "producer ids are given once"

    def send(label: str, sequence: int, count: int = 2, epoch: int = 0, who: int = -1) -> None:
        producer = given["producer_id"] if who == -1 else who
        records = batch(
            [b"%d" % number for number in range(count)],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        produce(script, label, topic, records)

    send("sequence 0..1", 0)
    send("again: a duplicate", 0)
    send("sequence 2..3", 2)
    send("the duplicate before the last", 0)
    send("a gap", 10)
    send("other size of a known sequence", 2, count=3)
    for sequence in range(4, 16, 2):
        send(f"sequence {sequence}", sequence)
    send("five batches back", 6)
    send("six batches back", 4)
    send("a newer epoch, sequence not zero", 5, epoch=1)
    send("a newer epoch from zero", 0, epoch=1)
    send("an older epoch", 2, epoch=0)
    send("a negative epoch", 2, epoch=-1)
    stranger = other["producer_id"]
    send("first of a producer, sequence not zero", 7, who=stranger)
    send("then on", 9, who=stranger)
    send("back to zero", 0, who=stranger)
    unknown = other["producer_id"] + 500
    send("an id that nobody gave", 0, who=unknown)
    wrap = other["producer_id"] + 501
    send("close to the last sequence", (1 << 31) - 2, who=wrap)
    send("wrapped to zero", 0, who=wrap)
    send("within the wrapped", 2, who=wrap)
    inside = other["producer_id"] + 502
    send("wraps inside a batch", (1 << 31) - 1, count=3, who=inside)
    send("after the wrap", 2, who=inside)
    fetch(script, "each once", topic, 0)


def producer_ids(script: Script) -> None:
    def ask(label: str, **fields: object) -> None:
        base: dict[str, object] = {"transactional_id": None, "transaction_timeout": 60000}
        script.request(label, "init_producer_id", {**base, **fields})

    ask("no transactional id")
    ask("timeout of zero", transaction_timeout=0)
    ask("negative timeout", transaction_timeout=-1)
    ask("empty transactional id", transactional_id="")
    ask("timeout too long", transactional_id=script.topic("t"), transaction_timeout=99999999)
    if script.at_least("init_producer_id", 3):
        ask("with a producer id", producer_id=5, producer_epoch=0)
        ask("with an epoch alone", producer_id=-1, producer_epoch=3)
        ask("with an id alone", producer_id=5, producer_epoch=-1)


def _topic(
    script: Script, name: str, configs: Mapping[str, str] | None = None, *, partitions: int = 1
) -> tuple[str, str]:
    full = script.topic(name)
    return full, script.make_topic(full, partitions=partitions, configs=configs or {})


def _at(*seconds: int) -> list[Row]:
    return [Row(b"%d" % at, timestamp=TIMESTAMP + at * 1000) for at in seconds]
