"""The audit topic of three real nodes, with real clients."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.processes import until
from tests.secure_node import SecureNode

pytestmark = pytest.mark.slow

TOPIC = "__riverrun_audit"
SECONDS_MAX = 40
Found = dict[str, Any]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    nodes = SecureNode(tmp_path_factory.mktemp("audit") / "data", nodes=3)
    for user in ("alice", "auditor"):
        added = nodes.run("users", "add", user, "--password-file", "-", given=f"{user}-pass\n")
        assert added.returncode == 0, added.stderr
    allow(nodes, "auditor", "Read", "--topic", TOPIC)
    allow(nodes, "auditor", "Read", "--group", "siem")
    yield nodes
    nodes.stop()


@pytest.fixture(scope="module")
def events(secure: SecureNode) -> Iterator[Events]:
    consumer = Consumer(
        secure.client(
            "auditor", "auditor-pass", **{"group.id": "siem", "auto.offset.reset": "earliest"}
        )
    )
    consumer.subscribe([TOPIC])
    yield Events(consumer)
    consumer.close()


class Events:
    """What an ordinary user reads from the topic."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.seen: list[Found] = []

    def find(self, what: str, matches: Callable[[Found], bool]) -> Found:
        def poll() -> Found | None:
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self.seen.append(json.loads(message.value() or b""))
            return next((one for one in self.seen if matches(one)), None)

        found: Found = until(poll, seconds=SECONDS_MAX, what=what)
        return found

    def change(self, api: str, name: str) -> Found:
        return self.find(
            f"{api} of {name}",
            lambda one: (
                one.get("api", {}).get("operation") == api
                and {"name": name}.items() <= one["resources"][0].items()
                and one["activity_id"] != 99
            ),
        )


def allow(secure: SecureNode, user: str, operation: str, *resource: str) -> None:
    added = secure.run("acls", "add", "--user", user, "--operation", operation, *resource)
    assert added.returncode == 0, added.stderr


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(KafkaException) as raised:
        call()
    return str(raised.value.args[0].name())


def test_logins_are_recorded_with_user_mechanism_address_and_listener(
    secure: SecureNode, events: Events
) -> None:
    alice = AdminClient(secure.client("alice", "alice-pass"))
    alice.list_topics(timeout=20)
    found = events.find(
        "a login", lambda one: one["class_uid"] == 3002 and one["user"]["name"] == "alice"
    )
    assert (found["status"], found["auth_protocol"]) == ("Success", "SCRAM-SHA-512")
    assert found["src_endpoint"] == {"ip": "127.0.0.1"}
    assert found["dst_endpoint"]["svc_name"] == "SASL_SSL"
    wrong = AdminClient(secure.client("alice", "wr0ng"), logger=None)
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=3)
    failed = events.find(
        "a failed login",
        lambda one: one["class_uid"] == 3002 and one["status"] == "Failure",
    )
    assert failed["user"]["name"] == "alice"
    assert failed["status_detail"] == "wrong password"


def test_denials_are_recorded(secure: SecureNode, events: Events) -> None:
    alice = AdminClient(secure.client("alice", "alice-pass"))
    (future,) = alice.create_topics([NewTopic("forbidden", 1)]).values()
    assert error_of(future.result) == "TOPIC_AUTHORIZATION_FAILED"
    found = events.find(
        "a denial",
        lambda one: (
            one["class_uid"] == 6003
            and one["activity_name"] == "Denied"
            and one["resources"] == [{"type": "topic", "name": "forbidden"}]
        ),
    )
    assert found["actor"]["user"]["name"] == "alice"
    assert (found["api"]["operation"], found["unmapped"]["operation"]) == ("CreateTopics", "CREATE")


def test_administrative_changes_are_recorded(secure: SecureNode, events: Events) -> None:
    admin = AdminClient(secure.admin)
    admin.create_topics([NewTopic("orders", 3)])["orders"].result()
    made = events.change("CreateTopics", "orders")
    assert (made["status"], made["actor"]["user"]["name"]) == ("Success", "admin")
    again = admin.create_topics([NewTopic("orders", 3)])["orders"]
    assert error_of(again.result) == "TOPIC_ALREADY_EXISTS"
    events.find("a failure", lambda one: one.get("status_code") == "TOPIC_ALREADY_EXISTS")
    rule = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([rule])[rule].result()
    added = events.change("CreateAcls", "orders")
    assert added["api"]["request"]["data"]["creations"][0]["operation"] == "write"
    admin.delete_topics(["orders"])["orders"].result()
    assert events.change("DeleteTopics", "orders")["activity_name"] == "Delete"


def test_users_are_account_changes_without_secrets(secure: SecureNode, events: Events) -> None:
    found = events.find(
        "the user auditor",
        lambda one: one["class_uid"] == 3001 and one["user"]["name"] == "auditor",
    )
    assert found["unmapped"].keys() == {"name", "mechanism", "iterations"}
    text = json.dumps(events.seen)
    assert "auditor-pass" not in text
    assert "wr0ng" not in text


def test_every_node_writes_its_events(secure: SecureNode, events: Events) -> None:
    for node in secure.told["nodes"]:
        name = f"node-{node['id']}"
        one = AdminClient({**secure.admin, "bootstrap.servers": node["client"]})
        one.list_topics(timeout=20)
        # Nodes log in to each other by their certificates, so every one of them has events.
        events.find(name, lambda one, name=name: one["metadata"]["log_provider"] == name)  # type: ignore[misc]


def test_the_log_has_the_same_events(secure: SecureNode, events: Events) -> None:
    admin = AdminClient(secure.admin)
    admin.create_topics([NewTopic("logged", 1)])["logged"].result()
    events.change("CreateTopics", "logged")
    log = "\n".join(line for line in secure.logged.splitlines() if "topic:logged" in line)
    for part in ("change", "api=CreateTopics", "user=User:admin", "client=127.0.0.1"):
        assert part in log
    for part in ("login failed", "denied", "user=User:alice"):
        assert part in secure.logged


def test_a_user_without_the_right_cannot_read_it(secure: SecureNode) -> None:
    allow(secure, "alice", "Read", "--group", "spy")
    consumer = Consumer(secure.client("alice", "alice-pass", **{"group.id": "spy"}))
    consumer.subscribe([TOPIC])
    try:
        message = until(lambda: consumer.poll(0.5), seconds=SECONDS_MAX, what="an error")
        assert message.error().name() == "TOPIC_AUTHORIZATION_FAILED"
    finally:
        consumer.close()


def test_nobody_writes_changes_or_deletes_it_not_even_a_super_user(
    secure: SecureNode, events: Events
) -> None:
    admin, security = AdminClient(secure.admin), secure.security
    refused = "TOPIC_AUTHORIZATION_FAILED"
    assert secure.produce(security["user"], security["password"], TOPIC) == refused
    assert error_of(admin.delete_topics([TOPIC])[TOPIC].result) == refused
    assert error_of(admin.create_partitions([NewPartitions(TOPIC, 9)])[TOPIC].result) == refused
    change = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[change])
    (altered,) = admin.incremental_alter_configs([resource]).values()
    assert error_of(altered.result) == refused
    found = events.find(
        "the denied deletion",
        lambda one: one["activity_name"] == "Denied" and one["unmapped"]["operation"] == "DELETE",
    )
    assert found["resources"] == [{"type": "topic", "name": TOPIC}]


def test_settings_of_the_brokers_neither_delete_nor_refuse_events(
    secure: SecureNode, events: Events
) -> None:
    admin = AdminClient(secure.admin)
    limits = {"log.retention.bytes": "1", "message.max.bytes": "100"}
    texts = [f"{name}={value}" for name, value in limits.items()]
    changed = secure.run("cluster", "config", "set", *texts)
    assert changed.returncode == 0, changed.stderr
    try:
        topic = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
        (described,) = admin.describe_configs([topic]).values()
        assert described.result()["retention.bytes"].value == "-1"
        admin.create_topics([NewTopic("after-limits", 1, 1)])["after-limits"].result()
        events.change("CreateTopics", "after-limits")
    finally:
        assert secure.run("cluster", "config", "unset", *limits).returncode == 0


def test_events_are_written_when_a_node_is_killed(secure: SecureNode, events: Events) -> None:
    """Runs last: the killed node does not come back."""
    first, *others = secure.told["nodes"]
    os.kill(first["pid"], signal.SIGKILL)
    left = {"bootstrap.servers": ",".join(node["client"] for node in others)}
    for name in ("after-1", "after-2"):
        admin = AdminClient({**secure.admin, **left})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result()
        events.change("CreateTopics", name)
