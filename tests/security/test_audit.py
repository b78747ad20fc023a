"""Audit events: the bounded queue, and their form in OCSF."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.ports.metrics import Counter
from riverrun.security.audit import (
    REPEAT_SECONDS,
    AuditQueue,
    ChangeEvent,
    ChangeOutcome,
    DenialEvent,
    Entry,
    Event,
    LoginEvent,
    LostEvents,
    Origin,
)
from riverrun.security.ocsf import ReportingNode, documents

ALICE = Origin(principal="User:alice", client_host="10.0.0.9", listener="SASL_SSL")
LOGIN = LoginEvent(origin=ALICE, mechanism="SCRAM-SHA-512")
DENIAL = DenialEvent(
    origin=ALICE, api="Produce", operation="WRITE", resource_type="topic", resource_name="orders"
)


def change(
    api: str = "CreateTopics", outcome: ChangeOutcome | None = None, **more: Any
) -> ChangeEvent:
    found = outcome or ChangeOutcome(succeeded=1)
    values: dict[str, Any] = {
        "resources": (("topic", "orders"),),
        "request": {"topics": [{"name": "orders"}]},
        **more,
    }
    return ChangeEvent(
        origin=ALICE,
        api=api,
        api_version=7,
        client_id="tester",
        correlation_id=3,
        read_outcome=lambda: found,
        **values,
    )


class Queue:
    """An ``AuditQueue`` with a clock of its own."""

    def __init__(self, events_max: int, **more: int) -> None:
        self.dropped = Counter()
        self.queue = AuditQueue(events_max, self.dropped, **more)
        self.now = 0.0

    def add(self, event: Event, key: object = None) -> None:
        now_ms = int(self.now * 1000)
        self.queue.add(event, None if key is None else (key,), now=self.now, now_ms=now_ms)

    def take(self, count_max: int = 100) -> list[Entry]:
        return self.queue.take(count_max, now=self.now, now_ms=int(self.now * 1000))


def test_events_without_room_are_dropped_counted_and_reported_once() -> None:
    queue = Queue(3)
    for _ in range(5):
        queue.add(change())
    assert queue.dropped.value == 2
    taken = queue.take()
    assert [type(entry.event) for entry in taken] == [ChangeEvent] * 3 + [LostEvents]
    assert taken[-1].event == LostEvents(count=2)
    queue.add(change())
    assert [type(entry.event) for entry in queue.take()] == [ChangeEvent]


def test_large_events_count_by_their_bytes() -> None:
    queue = Queue(100, bytes_max=10_000)
    for _ in range(4):
        queue.add(change(held_bytes=2000))
    assert (len(queue.queue), queue.dropped.value) == (2, 2)
    queue.take()
    queue.add(change(held_bytes=2000))
    assert len(queue.queue) == 1


def test_a_flood_of_denials_is_two_events() -> None:
    queue = Queue(10)
    for count in range(1000):
        queue.now = count / 1000
        queue.add(DENIAL, "alice")
    first = queue.take()
    assert [(entry.event, entry.count) for entry in first] == [(DENIAL, 1)]
    queue.now = REPEAT_SECONDS
    (rest,) = queue.take()
    assert (rest.event, rest.count, rest.first_ms, rest.last_ms) == (DENIAL, 999, 1, 999)
    assert queue.dropped.value == 0


def test_a_repeated_event_after_a_quiet_time_is_reported_at_once() -> None:
    queue = Queue(10)
    queue.add(DENIAL, "alice")
    queue.take()
    queue.now = REPEAT_SECONDS
    assert queue.take() == []
    queue.add(DENIAL, "alice")
    assert [entry.count for entry in queue.take()] == [1]


def test_aggregated_events_that_find_no_room_count_with_all_their_repeats() -> None:
    queue = Queue(1)
    queue.add(DENIAL, "alice")
    for _ in range(4):
        queue.add(DENIAL, "alice")
    queue.queue.end_repeats()
    assert queue.dropped.value == 4


def test_keys_of_an_attacker_do_not_grow_the_memory() -> None:
    queue = Queue(10)
    for key in range(1000):
        queue.add(LOGIN, key)
        queue.take()
    assert len(queue.queue._repeats) <= 10


# The form of OCSF

REQUIRED_FIELDS = (
    "activity_id",
    "category_uid",
    "class_uid",
    "metadata",
    "severity_id",
    "time",
    "type_uid",
)
OF_CLASS = {
    3001: ("user", "actor", "src_endpoint"),
    3002: ("user", "service", "dst_endpoint", "src_endpoint", "auth_protocol"),
    6003: ("actor", "api", "src_endpoint", "resources"),
    6008: ("message",),
}


def documents_of(event: Event, count: int = 1) -> list[dict[str, Any]]:
    entry = Entry(event=event, first_ms=1000, last_ms=2000, count=count)
    return list(documents(entry, ReportingNode(node_id=7, version="1.2")))


@pytest.mark.parametrize(
    ("event", "class_uid", "activity"),
    [
        (LOGIN, 3002, 1),
        (LoginEvent(origin=ALICE, mechanism="PLAIN", failure="wrong password"), 3002, 1),
        (DENIAL, 6003, 99),
        (change(), 6003, 1),
        (change("IncrementalAlterConfigs"), 6003, 3),
        (change("DeleteTopics"), 6003, 4),
        (change("UnregisterBroker"), 6003, 4),
        (change("AlterUserScramCredentials", request={"upsertions": [{"name": "bob"}]}), 3001, 3),
        (change("AlterUserScramCredentials", request={"deletions": [{"name": "bob"}]}), 3001, 6),
        (LostEvents(count=5), 6008, 1),
    ],
)
def test_each_event_has_the_fields_that_its_class_requires(
    event: Event, class_uid: int, activity: int
) -> None:
    (document,) = documents_of(event)
    for name in (*REQUIRED_FIELDS, *OF_CLASS[class_uid]):
        assert name in document, name
    assert (document["class_uid"], document["activity_id"]) == (class_uid, activity)
    assert document["category_uid"] == class_uid // 1000
    assert document["type_uid"] == class_uid * 100 + activity
    assert document["metadata"]["version"] == "1.4.0"
    assert {"name", "vendor_name", "version"} <= document["metadata"]["product"].keys()
    if class_uid == 6003:
        assert document["api"]["operation"]


def test_a_failed_login_says_who_from_where_by_what_and_why() -> None:
    (found,) = documents_of(LoginEvent(origin=ALICE, mechanism="PLAIN", failure="wrong"), count=3)
    assert found["user"]["name"] == "alice"
    assert found["src_endpoint"] == {"ip": "10.0.0.9"}
    assert found["dst_endpoint"] == {"name": "node-7", "svc_name": "SASL_SSL"}
    assert (found["auth_protocol"], found["status"]) == ("PLAIN", "Failure")
    assert found["status_detail"] == "wrong"
    assert (found["count"], found["start_time"], found["end_time"]) == (3, 1000, 2000)


def test_a_change_has_its_request_and_its_result() -> None:
    failed = ChangeOutcome(
        succeeded=1, failed=2, code=36, error="TOPIC_ALREADY_EXISTS", message="there"
    )
    (found,) = documents_of(change(outcome=failed))
    assert found["actor"]["user"]["name"] == "alice"
    assert found["api"]["request"]["data"] == {"topics": [{"name": "orders"}]}
    assert found["api"]["response"] == {
        "code": 36,
        "error": "TOPIC_ALREADY_EXISTS",
        "error_message": "there",
    }
    assert found["status_code"] == "TOPIC_ALREADY_EXISTS"
    assert found["status_detail"] == "there (2 of 3 items failed)"
    assert found["resources"] == [{"type": "topic", "name": "orders"}]


def test_a_change_of_several_users_is_an_event_for_each() -> None:
    request = {"upsertions": [{"name": "bob"}, {"name": "eve"}], "deletions": [{"name": "mia"}]}
    found = documents_of(change("AlterUserScramCredentials", request=request))
    assert [(one["user"]["name"], one["activity_name"]) for one in found] == [
        ("bob", "Password Change"),
        ("eve", "Password Change"),
        ("mia", "Delete"),
    ]


def test_a_result_that_was_not_read_is_unknown() -> None:
    (found,) = documents_of(change(outcome=ChangeOutcome(is_known=False)))
    assert (found["status_id"], found["status"]) == (0, "Unknown")
