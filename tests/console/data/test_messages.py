"""Messages by REST, on a real node: browse, follow, download, write and redrive."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import pytest

from riverrun.client.partitions import produce
from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import TransactionalProducer
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, build_batch
from tests.console.rest.caller import Caller, run_command
from tests.processes import Riverrun

pytestmark = pytest.mark.slow

MOMENT_MS = 1_700_000_000_000


def write(
    node: Riverrun,
    topic: str,
    records: Iterable[tuple[int, NewRecord]],
    compression: Compression = Compression.NONE,
) -> None:
    """Write records to the partitions that are named with them, each as a batch."""

    async def run() -> None:
        async with ConnectionPool([node.address]) as pool:
            for partition, record in records:
                batch = build_batch([record], compression=compression)
                await produce(pool, topic, partition, batch)

    asyncio.run(run())


def numbered(count: int) -> list[tuple[int, NewRecord]]:
    """Records with rising times, spread over three partitions."""
    return [
        (number % 3, NewRecord(b"value-%03d" % number, b"k%d" % number, MOMENT_MS + number))
        for number in range(count)
    ]


def values(page: dict[str, Any]) -> list[str]:
    return [item["value"]["text"] for item in page["items"]]


def test_pages_lead_to_the_oldest_message_and_back(
    node: Riverrun, rest: Caller, topic: str
) -> None:
    write(node, topic, numbered(25))
    first = rest.get(f"topics/{topic}/messages?limit=10")
    assert values(first) == [f"value-{number:03}" for number in range(24, 14, -1)]
    assert first["newer"] is None
    assert first["complete"]
    second = rest.get(f"topics/{topic}/messages?limit=10&direction=older&cursor={first['older']}")
    third = rest.get(f"topics/{topic}/messages?limit=10&direction=older&cursor={second['older']}")
    assert values(second)[0] == "value-014"
    assert values(third) == [f"value-{number:03}" for number in range(4, -1, -1)]
    assert third["older"] is None
    back = rest.get(f"topics/{topic}/messages?limit=10&direction=newer&cursor={second['newer']}")
    assert values(back) == [f"value-{number:03}" for number in range(15, 25)]
    assert back["newer"] is None


def test_start_may_be_an_offset_a_time_or_a_partition(
    node: Riverrun, rest: Caller, topic: str
) -> None:
    write(node, topic, numbered(12))
    base = f"topics/{topic}/messages"
    oldest = rest.get(f"{base}?from=earliest&limit=3")
    assert values(oldest) == ["value-000", "value-001", "value-002"]
    assert oldest["older"] is None
    timed = rest.get(f"{base}?from=time&time_ms={MOMENT_MS + 7}&limit=500")
    assert values(timed) == [f"value-{number:03}" for number in range(7, 12)]
    earlier = rest.get(f"{base}?from=time&time_ms={MOMENT_MS + 7}&direction=older&limit=2")
    assert values(earlier) == ["value-006", "value-005"]
    single = rest.get(f"{base}?partition=1&from=offset&offset=2")
    assert values(single) == ["value-007", "value-010"]
    assert {item["partition"] for item in single["items"]} == {1}
    late = rest.get(f"{base}?from=time&time_ms={MOMENT_MS + 10**9}")
    assert late["items"] == []
    assert late["newer"] is None


def test_message_has_its_facts_and_a_permanent_address(
    node: Riverrun, rest: Caller, topic: str
) -> None:
    headers = (("trace", b"42"), ("none", None))
    record = NewRecord(b'{"price": 1.5}', b"\x00\xff", MOMENT_MS, headers)
    write(node, topic, [(2, record)], Compression.ZSTD)
    found = rest.get(f"topics/{topic}/messages/2/0")
    assert found == rest.get(f"topics/{topic}/messages")["items"][0]
    assert (found["partition"], found["offset"], found["timestamp_ms"]) == (2, 0, MOMENT_MS)
    assert found["value"] == {
        "format": "json", "text": '{"price": 1.5}', "size": 14, "truncated": False,
        "schema_id": None, "base64": None,
    }  # fmt: skip
    assert (found["key"]["format"], found["key"]["base64"]) == ("hex", "AP8=")
    assert found["headers"][0]["value"]["text"] == "42"
    assert found["headers"][1] == {"name": "none", "value": None}
    assert (found["codec"], found["timestamp_type"]) == ("zstd", "create")
    as_hex = rest.get(f"topics/{topic}/messages/2/0?format=hex")
    assert as_hex["value"]["text"] == b'{"price": 1.5}'.hex()
    status, code, text = rest.problem("GET", f"topics/{topic}/messages/2/1")
    assert (status, code) == (404, "not_found")
    assert "offset 1" in text


def test_large_payload_is_cut_in_lists_only(node: Riverrun, rest: Caller, topic: str) -> None:
    write(node, topic, [(0, NewRecord(b"x" * 500_000, None, MOMENT_MS))])
    (listed,) = rest.get(f"topics/{topic}/messages")["items"]
    assert listed["value"]["truncated"]
    assert listed["value"]["size"] == 500_000
    assert len(listed["value"]["text"]) == 64 * 1024
    whole = rest.get(f"topics/{topic}/messages/0/0")
    assert len(whole["value"]["text"]) == 500_000


def test_filter_searches_keys_values_and_headers(node: Riverrun, rest: Caller, topic: str) -> None:
    write(node, topic, numbered(30))
    write(
        node,
        topic,
        [
            (0, NewRecord(b"plain", b"Needle-key", MOMENT_MS + 50)),
            (1, NewRecord(b"plain", None, MOMENT_MS + 51, (("trace", b"a needle"),))),
            (2, NewRecord(b"has a NEEDLE", None, MOMENT_MS + 52)),
        ],
    )
    page = rest.get(f"topics/{topic}/messages?filter=needle")
    assert [item["partition"] for item in page["items"]] == [2, 1, 0]
    assert page["scanned"] == 33
    assert page["complete"]
    assert page["older"] is None
    assert rest.get(f"topics/{topic}/messages?filter=value-01&limit=4")["scanned"] < 33


def test_empty_topic_answers_at_once(rest: Caller, topic: str) -> None:
    page = rest.get(f"topics/{topic}/messages")
    assert page == {
        "items": [], "older": None, "newer": None, "scanned": 0, "scanned_bytes": 0,
        "complete": True,
    }  # fmt: skip


def test_aborted_and_open_transactions_are_hidden(node: Riverrun, rest: Caller, topic: str) -> None:
    at = TopicPartition(TopicName(topic), PartitionIndex(0))

    async def run() -> None:
        async with ConnectionPool([node.address]) as pool:
            producer = TransactionalProducer(pool, topic)
            await producer.init()
            for value, ends_with in ((b"aborted", producer.abort), (b"kept", producer.commit)):
                await producer.begin()
                await producer.send({at: [NewRecord(value, None, MOMENT_MS)]})
                await ends_with()
            await producer.begin()
            await producer.send({at: [NewRecord(b"open", None, MOMENT_MS)]})

    asyncio.run(run())
    base = f"topics/{topic}/messages"
    assert values(rest.get(base)) == ["kept"]
    assert values(rest.get(f"{base}?from=earliest")) == ["kept"]
    everything = rest.get(f"{base}?isolation=read_uncommitted")
    assert values(everything) == ["open", "kept", "aborted"]
    assert everything["items"][0]["transactional"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=0", 400),
        ("limit=501", 400),
        ("limit=x", 400),
        ("format=yaml", 400),
        ("partition=x", 400),
        ("partition=-1", 400),
        ("partition=3", 404),
        ("from=offset", 400),
        ("from=offset&offset=-5", 400),
        ("from=time", 400),
        ("direction=sideways", 400),
        ("isolation=none", 400),
        ("cursor=nonsense", 400),
        ("cursor=AAAA", 400),
        (f"filter={'x' * 2000}", 400),
    ],
)
def test_invalid_selection_is_explained(rest: Caller, query: str, status: int) -> None:
    rest.send("POST", "topics", json={"name": "invalid", "partitions": 3, "replication_factor": 1})
    found, code, text = rest.problem("GET", f"topics/invalid/messages?{query}")
    assert found == status
    assert code == ("invalid" if status == 400 else "not_found")
    assert text


def test_unknown_topic_is_not_found(rest: Caller) -> None:
    for path in ("messages", "messages/0/0", "tail", "export"):
        assert rest.problem("GET", f"topics/no-such-topic/{path}")[:2] == (404, "not_found")


# Streams


def test_download_has_all_messages(node: Riverrun, rest: Caller, topic: str) -> None:
    write(node, topic, numbered(40))
    write(node, topic, [(0, NewRecord(b"\xff\x00", b'a,b\n"c"', MOMENT_MS + 99))])
    response = rest.send("GET", f"topics/{topic}/export?format=ndjson")
    assert response.headers["content-disposition"] == f'attachment; filename="{topic}.ndjson"'
    rows = [json.loads(line) for line in response.text.splitlines()]
    assert len(rows) == 41
    assert rows[0]["value"] == "value-000"
    assert rows[-1]["value_base64"] == "/wA="
    table = rest.send("GET", f"topics/{topic}/export?format=csv&filter=value-00&limit=5").text
    lines = list(csv.DictReader(io.StringIO(table)))
    assert [line["value"] for line in lines] == [f"value-00{number}" for number in range(5)]
    whole = list(
        csv.DictReader(io.StringIO(rest.send("GET", f"topics/{topic}/export?format=csv").text))
    )
    assert whole[-1]["key"] == 'a,b\n"c"'
    assert whole[-1]["value_base64"] == "/wA="


def test_downloaded_lines_can_be_produced_again(
    node: Riverrun, rest: Caller, topic: str, tmp_path: Any
) -> None:
    write(node, topic, numbered(5))
    file = tmp_path / "records.ndjson"
    file.write_text(rest.send("GET", f"topics/{topic}/export").text)
    run_command(
        f"riverrun produce {topic} --format json --file {file} -q",
        RIVERRUN_BOOTSTRAP=node.bootstrap,
    )
    assert rest.get(f"topics/{topic}/messages")["scanned"] == 10


def test_tail_sends_new_messages_and_counts(node: Riverrun, rest: Caller, topic: str) -> None:
    write(node, topic, numbered(5))
    url = f"{rest.base}/api/v1/clusters/main/topics/{topic}/tail?rate_max=2&filter=new"
    with httpx.Client(timeout=60) as client, client.stream("GET", url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = each_event(response)
        assert next(events)[0] == "sample"  # the ends are known
        write(node, topic, [(0, NewRecord(b"new %d" % number, None, 5)) for number in range(10)])
        write(node, topic, [(1, NewRecord(b"other", None, 6))])
        seen, sent, dropped = 0, 0, 0
        messages: list[str] = []
        for name, data in events:
            if name == "message":
                messages.append(data["value"]["text"])
            if name == "sample":
                seen, sent, dropped = data["seen"], data["sent"], data["dropped"]
                if seen == 11:
                    break
    assert sent + dropped == 10
    assert sent == len(messages)
    assert 1 <= len(messages) < 10
    assert all(text.startswith("new") for text in messages)


def each_event(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


# Writing


def test_produced_messages_have_all_forms(node: Riverrun, rest: Caller, topic: str) -> None:
    records = [
        {"key": "k", "value": '{"a": 1}', "value_format": "json", "partition": 1},
        {"key": None, "value": {"b": [1]}, "value_format": "json", "partition": 1},
        {"key": "AAE=", "key_format": "base64", "value": None, "partition": 1,
         "headers": [{"name": "h", "value": "1"}, {"name": "n", "value": None}]},
    ]  # fmt: skip
    body = {"records": records, "dry_run": True}
    dry = rest.call("POST", f"topics/{topic}/messages", body)
    assert dry["dry_run"]
    assert dry["offsets"] == []
    assert rest.get(f"topics/{topic}/messages")["items"] == []
    done = rest.call("POST", f"topics/{topic}/messages", {"records": records})
    assert done["offsets"] == [{"partition": 1, "offset": offset} for offset in range(3)]
    listed = rest.get(f"topics/{topic}/messages?from=earliest")["items"]
    assert [item["value"] and item["value"]["text"] for item in listed] == [
        '{"a": 1}', '{"b":[1]}', None,
    ]  # fmt: skip
    assert listed[2]["key"]["base64"] == "AAE="
    assert [header["name"] for header in listed[2]["headers"]] == ["h", "n"]
    run_command(done["command"], RIVERRUN_BOOTSTRAP=node.bootstrap)
    again = rest.get(f"topics/{topic}/messages?from=earliest")["items"]
    assert len(again) == 6
    assert again[5]["key"] == again[2]["key"]


@pytest.mark.parametrize(
    ("record", "status"),
    [
        ({"value": "x", "partition": 9}, 400),
        ({"value": "x", "partition": -1}, 400),
        ({"value": "{", "value_format": "json"}, 400),
        ({"value": "*", "value_format": "base64"}, 400),
        ({"value": 5}, 400),
        ({"value": "x", "value_format": "xml"}, 400),
        ({"value": "x", "headers": [{"value": "1"}]}, 400),
        ({"value": "x" * 2_000_000}, 400),
    ],
)
def test_invalid_message_is_not_written(rest: Caller, record: dict[str, Any], status: int) -> None:
    rest.send(
        "POST", "topics", json={"name": "invalid-writes", "partitions": 1, "replication_factor": 1}
    )
    found, _, text = rest.problem("POST", "topics/invalid-writes/messages", {"records": [record]})
    assert found == status
    assert text
    assert rest.get("topics/invalid-writes/messages")["items"] == []


def test_produce_does_not_create_topics(rest: Caller) -> None:
    body = {"records": [{"value": "x"}]}
    assert rest.problem("POST", "topics/not-there/messages", body)[:2] == (404, "not_found")
    assert rest.problem("POST", "topics/not-there/messages", {"records": []})[:2] == (
        400,
        "invalid",
    )


def test_message_is_sent_again_byte_by_byte(node: Riverrun, rest: Caller, topic: str) -> None:
    to = f"{topic}-copy"
    rest.call("POST", "topics", {"name": to, "partitions": 1, "replication_factor": 1})
    record = NewRecord(b"\x00\x01", b"key", MOMENT_MS, (("h", b"1"),))
    write(node, topic, [(1, record)])
    body = {"partition": 1, "offset": 0, "to": to}
    assert rest.call("POST", f"topics/{topic}/resend", {**body, "dry_run": True})["offsets"] == []
    done = rest.call("POST", f"topics/{topic}/resend", body)
    assert done["offsets"] == [{"partition": 0, "offset": 0}]
    (copy,) = rest.get(f"topics/{to}/messages")["items"]
    assert (copy["value"]["base64"], copy["key"]["text"]) == ("AAE=", "key")
    missing = {**body, "offset": 5}
    assert rest.problem("POST", f"topics/{topic}/resend", missing)[:2] == (404, "not_found")
    nowhere = {**body, "to": "no-such-topic"}
    assert rest.problem("POST", f"topics/{topic}/resend", nowhere)[:2] == (404, "not_found")


def letter(value: bytes, origin: str | None, moment: int) -> NewRecord:
    headers = [("riverrun.reason", b"not JSON"), ("own", b"1")]
    if origin is not None:
        headers.append(("riverrun.topic", origin.encode()))
    return NewRecord(value, b"k", MOMENT_MS + moment, tuple(headers))


def test_dead_letters_go_back_to_their_topics(node: Riverrun, rest: Caller, topic: str) -> None:
    first, second = f"{topic}-a", f"{topic}-b"
    for name in (first, second):
        rest.call("POST", "topics", {"name": name, "partitions": 1, "replication_factor": 1})
    write(
        node,
        topic,
        [
            (0, letter(b"one", first, 1)),
            (1, letter(b"two", second, 2)),
            (2, letter(b"three", None, 3)),
            (0, letter(b"four", first, 4)),
        ],
    )
    path = f"topics/{topic}/redrive"
    dry = rest.call("POST", path, {"dry_run": True})
    assert (dry["records"], dry["skipped"], dry["to"]) == (3, 1, None)
    assert dry["topics"] == {first: 2, second: 1}
    assert dry["sample"][0] == {
        "partition": 0, "offset": 0, "to": first, "key": "k", "value": "one",
    }  # fmt: skip
    assert rest.get(f"topics/{first}/messages")["items"] == []
    status, code, text = rest.problem("POST", path, {"filter": "o", "limit": 100})
    assert (status, code) == (400, "invalid")
    assert "targets" in text
    confirmed = {"filter": "o", "limit": 100, "targets": list(dry["topics"])}
    done = rest.call("POST", path, confirmed)
    assert done["records"] == 3
    found = rest.get(f"topics/{first}/messages?from=earliest")["items"]
    assert [item["value"]["text"] for item in found] == ["one", "four"]
    assert [header["name"] for header in found[0]["headers"]] == ["own"]
    chosen = rest.call("POST", path, {"to": second, "limit": 2})
    assert (chosen["records"], chosen["to"], chosen["complete"]) == (2, second, False)
    assert rest.problem("POST", path, {"to": "no-such-topic"})[:2] == (404, "not_found")
    assert rest.problem("POST", path, {"limit": 0})[:2] == (400, "invalid")


def test_a_dead_letter_chooses_no_topic_that_was_not_confirmed(
    node: Riverrun, rest: Caller, topic: str
) -> None:
    """The author of a dead letter names the topic in a header."""
    good, other = f"{topic}-a", f"{topic}-b"
    for name in (good, other):
        rest.call("POST", "topics", {"name": name, "partitions": 1, "replication_factor": 1})
    names = (good, other, "__consumer_offsets", "__riverrun_audit", "no-such-topic", "x" * 300)
    write(node, topic, [(0, letter(b"v", name, place)) for place, name in enumerate(names)])
    path = f"topics/{topic}/redrive"
    dry = rest.call("POST", path, {"dry_run": True})
    assert dry["topics"] == {good: 1, other: 1}
    assert dry["refused"] == {
        "__consumer_offsets": 1, "__riverrun_audit": 1, "no-such-topic": 1,
    }  # fmt: skip
    assert (dry["records"], dry["refused_records"], dry["skipped"]) == (2, 3, 1)
    done = rest.call("POST", path, {"targets": [good, "__consumer_offsets", "no-such-topic"]})
    assert (done["topics"], done["records"], done["refused_records"]) == ({good: 1}, 1, 4)
    assert done["refused"][other] == 1
    assert len(rest.get(f"topics/{good}/messages")["items"]) == 1
    assert rest.get(f"topics/{other}/messages")["items"] == []
    refused = rest.problem("POST", path, {"to": "__consumer_offsets"})
    assert refused[0] in (403, 404)
    ours = f"__{topic}"
    rest.call("POST", "topics", {"name": ours, "partitions": 1, "replication_factor": 1})
    assert rest.problem("POST", path, {"to": ours})[:2] == (403, "forbidden")
    assert rest.get(f"topics/{ours}")["internal"]
    assert ours not in [row["name"] for row in rest.get("topics?limit=500")["items"]]
    assert ours in [row["name"] for row in rest.get("topics?limit=500&internal=true")["items"]]
