"""Metadata records in words: grouped by batch, and without secrets."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from riverrun.metadata.image import ConfigType
from riverrun.metadata.quorum import leader_change, voters_record
from riverrun.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord, EntityData
from riverrun.metadata.schema.no_op_record import NoOpRecord
from riverrun.metadata.schema.remove_access_control_entry_record import (
    RemoveAccessControlEntryRecord,
)
from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
from riverrun.model.ids import NodeId
from riverrun.placement.planner.stored_plan import (
    AWAY,
    HEADER,
    PROGRESS,
    RESULT,
    ROLLBACKS,
    SUGGESTION,
    PlanEnd,
    PlanHeader,
    PlanResult,
    encode,
)
from riverrun.records.record import ControlType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.facts.metadata_events import (
    EVENTS_PER_KIND_MAX,
    HIDDEN,
    PARTITIONS_SHOWN_MAX,
    DecodedRecord,
    MetadataEvent,
    Naming,
    events_of_batch,
)
from riverrun.server.facts.visibility import MetadataVisibility
from tests.cluster.fakes import make_configs
from tests.server.access import OPEN_ACCESS

ORDERS = UUID(int=5)
NOW_MS = 1_700_000_000_000


def naming() -> Naming:
    """Of a cluster without access control."""
    names = {ORDERS: "orders"}
    services: Any = SimpleNamespace(access=OPEN_ACCESS, configs=make_configs())
    context = RequestContext(0, 1, "test", "127.0.0.1", "PLAINTEXT", 1)
    return Naming(names.get, MetadataVisibility(services, context))


def events(*records: Record, first: int = 100) -> list[MetadataEvent]:
    decoded = [DecodedRecord(first + place, record) for place, record in enumerate(records)]
    return events_of_batch(decoded, NOW_MS, naming())


def partition(index: int, topic: UUID = ORDERS) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic,
        replicas=(1, 2),
        isr=(1, 2),
        removing_replicas=(),
        adding_replicas=(),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )


def election(index: int, leader: int = 2) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=index, topic_id=ORDERS, leader=leader, isr=(2,))


def stored_like_a_plan(resource: str, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ConfigType.PLAN, resource_name=resource, name=name, value=value
    )


def config(name: str, value: str | None, resource: str = "orders") -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name=resource, name=name, value=value)


def test_new_topic_is_one_event_with_its_partitions_and_settings() -> None:
    new = UUID(int=9)
    (event,) = events(
        TopicRecord(name="clicks", topic_id=new),
        config("retention.ms", "5", "clicks"),
        partition(0, new),
        partition(1, new),
    )
    assert event.kind == "topic"
    assert event.subject == "clicks"
    assert (event.offset, event.records, event.time_ms) == (100, 4, NOW_MS)
    assert event.text == "Topic clicks was created with 2 partitions and 2 replicas."
    assert event.details["configs"] == {"retention.ms": "5"}


def test_added_partitions_and_deletion_name_the_topic() -> None:
    (grown,) = events(partition(3), partition(4))
    assert grown.text == "Topic orders got 2 new partitions."
    (gone,) = events(RemoveTopicRecord(topic_id=ORDERS))
    assert gone.text == "Topic orders was deleted."
    (unknown,) = events(RemoveTopicRecord(topic_id=UUID(int=77)))
    assert str(UUID(int=77)) in unknown.text


def test_elections_of_a_batch_are_one_event() -> None:
    (one,) = events(election(3))
    assert one.kind == "election"
    assert one.subject == "orders-3"
    assert one.text == "orders-3: node 2 leads, in sync are 2."
    (many,) = events(*(election(index) for index in range(1000)))
    assert many.text == "1,000 partitions have new leaders (orders)."
    assert many.records == many.details["count"] == 1000
    assert len(many.details["partitions"]) == PARTITIONS_SHOWN_MAX
    (leaderless,) = events(election(0, -1))
    assert "there is no leader" in leaderless.text


def test_changes_of_partitions_have_their_kind() -> None:
    shrunk = PartitionChangeRecord(partition_id=0, topic_id=ORDERS, isr=(1,))
    moved = PartitionChangeRecord(
        partition_id=0, topic_id=ORDERS, replicas=(1, 2, 3), adding_replicas=(3,)
    )
    moved_to = PartitionChangeRecord(partition_id=0, topic_id=ORDERS, directories=(UUID(int=3),))
    assert [event.kind for event in events(shrunk)] == ["isr"]
    assert [event.kind for event in events(moved)] == ["move"]
    assert [event.kind for event in events(moved_to)] == ["other"]


def test_settings_of_a_listener_are_shown_unless_they_are_secret() -> None:
    prefix = "listener.name.sasl_ssl"
    values = {
        f"{prefix}.max.connections": "7",
        f"{prefix}.secret.word": "hunter2",
        f"{prefix}.plain.secret.word": "hunter2",
        f"{prefix}.of.another.version": "hunter2",
    }
    records = [
        ConfigRecord(resource_type=ConfigType.BROKER, resource_name="1", name=name, value=value)
        for name, value in values.items()
    ]
    (event,) = events(*records)
    assert list(event.details["set"].values()) == ["7", HIDDEN, HIDDEN, HIDDEN]
    assert "hunter2" not in str(event)


def test_settings_are_shown_unless_they_are_secret() -> None:
    (event,) = events(config("retention.ms", "7"), config("a.password", "hunter2"))
    assert event.details["set"] == {"retention.ms": "7", "a.password": HIDDEN}
    assert "hunter2" not in str(event)
    (reset,) = events(config("retention.ms", None))
    assert reset.text == "Topic orders: retention.ms was reset."


def test_what_is_stored_like_a_plan_has_its_own_words() -> None:
    def told(resource: str, **values: str | None) -> tuple[str, str, str]:
        (event,) = events(*(stored_like_a_plan(resource, *item) for item in values.items()))
        return event.kind, event.subject, event.text

    assert told(AWAY, **{"2": "1700000000000"}) == (
        "broker",
        "node 2",
        "The controller noted that node 2 is away.",
    )
    assert told(AWAY, **{"2": None, "3": "1700000000000"}) == (
        "broker",
        "nodes",
        "The controller noted that node 2 is back and node 3 is away.",
    )
    plan, reasons, suggestion = (told(name, x="{}") for name in ("p-7", ROLLBACKS, SUGGESTION))
    assert plan == ("move", "p-7", "The plan p-7 was updated.")
    assert reasons[2] == "The reasons of the last undone moves changed."
    assert suggestion[2] == "The controller's suggestion to balance was updated."


def test_a_plan_is_created_makes_progress_and_ends() -> None:
    def told(**values: str | None) -> str:
        (event,) = events(*(stored_like_a_plan("move-7", *item) for item in values.items()))
        assert (event.kind, event.subject) == ("move", "move-7")
        return event.text

    header = encode(PlanHeader(reason="topics move orders --to 3,2"))
    created = told(**{HEADER: header, "moves.0000": "[]"})
    assert created == "The plan move-7 was created: topics move orders --to 3,2."
    assert told(**{PROGRESS: "{}"}) == "The plan move-7 made progress."
    ended = PlanResult(end=PlanEnd.DONE, ended_ms=1, done=3, dropped=0)
    text = told(**{PROGRESS: None, "moves.0000": None, RESULT: encode(ended)})
    assert text == "The plan move-7 ended: 3 moves done."
    cancelled = PlanResult(end=PlanEnd.CANCELLED, ended_ms=1, done=0, dropped=3)
    assert told(**{RESULT: encode(cancelled)}) == "The plan move-7 was cancelled."
    assert told(**{RESULT: '{"of": "a newer version"}'}) == "The plan move-7 ended."
    assert "was removed" in told(**{HEADER: None, RESULT: None})


def test_credentials_never_appear() -> None:
    secret = UserScramCredentialRecord(
        name="ann", mechanism=2, salt=b"s4lt", stored_key=b"st0red", server_key=b"s3rver",
        iterations=4096,
    )  # fmt: skip
    (event,) = events(secret)
    assert event.kind == "user"
    assert event.details == {"mechanism": "SCRAM-SHA-512", "iterations": 4096}
    for part in ("s4lt", "st0red", "s3rver"):
        assert part not in str(event)


def test_brokers_rules_quotas_and_features() -> None:
    registered = RegisterBrokerRecord(
        broker_id=4, incarnation_id=UUID(int=1), broker_epoch=8, end_points=(), features=(),
        rack=None,
    )  # fmt: skip
    rule = AccessControlEntryRecord(
        id=UUID(int=2), resource_type=2, resource_name="orders", pattern_type=4,
        principal="User:ann", host="*", operation=3, permission_type=3,
    )  # fmt: skip
    quota = ClientQuotaRecord(
        entity=(EntityData(entity_type="user", entity_name=None),),
        key="producer_byte_rate",
        value=1000.0,
        remove=False,
    )
    found = events(
        registered,
        BrokerRegistrationChangeRecord(broker_id=4, broker_epoch=8, fenced=1),
        rule,
        RemoveAccessControlEntryRecord(id=UUID(int=2)),
        quota,
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        NoOpRecord(),
    )
    assert [event.kind for event in found] == ["broker", "broker", "acl", "acl", "quota", "feature"]
    assert found[1].text == "Node 4 does not respond and was fenced."
    assert found[2].text == "Rule added: User:ann may READ topic orders…."
    assert found[4].text == "Quota of user (default): producer_byte_rate is 1000."


def test_control_records_tell_about_the_quorum() -> None:
    led = leader_change(NodeId(2), [NodeId(1), NodeId(2)], [NodeId(2)], NOW_MS)
    voters = voters_record((), NOW_MS)
    found = events_of_batch(
        [
            DecodedRecord(0, None, ControlType.of(led.key), led.value or b""),
            DecodedRecord(1, None, ControlType.of(voters.key), voters.value or b""),
        ],
        NOW_MS,
        naming(),
    )
    assert [event.kind for event in found] == ["quorum", "quorum"]
    assert found[0].text == "Node 2 was elected as the active controller."


def test_many_events_of_one_kind_become_one() -> None:
    topics = [TopicRecord(name=f"t{index}", topic_id=UUID(int=index + 10)) for index in range(500)]
    (event,) = events(*topics)
    assert event.details["count"] == 500
    assert len(event.details["texts"]) == EVENTS_PER_KIND_MAX
    assert event.records == 500
