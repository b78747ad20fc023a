"""Who may see which events of the metadata log, and the traffic of which topics: the rights of
Kafka's own requests decide."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import (
    ClearElrRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    TopicRecord,
)
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord, EntityData
from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
from riverrun.metadata.schema.remove_delegation_token_record import RemoveDelegationTokenRecord
from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.placement.planner.stored_plan import AWAY
from riverrun.placement.traffic import BrokerTraffic
from riverrun.ports.clock import SystemClock
from riverrun.security.acls import AclOperation, AclPermission, PatternType, ResourceType
from riverrun.security.principal import Principal
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.facts.history import TopicRates
from riverrun.server.facts.metadata_diff import changes_between
from riverrun.server.facts.metadata_events import (
    HIDDEN,
    DecodedRecord,
    MetadataEvent,
    events_of_batch,
)
from riverrun.server.facts.timeline import naming_for
from riverrun.server.facts.traffic import TrafficMeans
from riverrun.server.requests.describe_node import handle
from riverrun.server.security.access import AccessControl
from riverrun.server.security.settings import AuthorizationSettings
from riverrun.wire.private.describe_node_request import DescribeNodeRequest
from tests.cluster.fakes import make_configs

ORDERS, SECRETS = UUID(int=5), UUID(int=6)
CLUSTER = ResourceType.CLUSTER, "kafka-cluster"
Right = tuple[AclOperation, ResourceType, str]
DESCRIBE_CLUSTER: Right = (AclOperation.DESCRIBE, *CLUSTER)
DESCRIBE_CONFIGS: Right = (AclOperation.DESCRIBE_CONFIGS, *CLUSTER)
ANN = RequestContext(0, 1, "test", "127.0.0.1", "PLAINTEXT", 1, Principal("User", "ann"))


def topic(name: str, topic_id: UUID) -> list[Record]:
    partition = PartitionRecord(
        partition_id=0, topic_id=topic_id, replicas=(1, 2), isr=(1, 2), removing_replicas=(),
        adding_replicas=(), leader=1, leader_epoch=0, partition_epoch=0,
    )  # fmt: skip
    return [TopicRecord(name=name, topic_id=topic_id), partition]


def rules(*rights: Right) -> list[Record]:
    return [
        AccessControlEntryRecord(
            id=UUID(int=100 + place), resource_type=int(kind), resource_name=name,
            pattern_type=int(PatternType.LITERAL), principal="User:ann", host="*",
            operation=int(operation), permission_type=int(AclPermission.ALLOW),
        )
        for place, (operation, kind, name) in enumerate(rights)
    ]  # fmt: skip


def image_of(*records: Record, base: Image | None = None) -> Image:
    delta = Delta(base or Image())
    for record in records:
        delta.replay(record)
    return delta.publish(offset=Offset(1), epoch=LeaderEpoch(1), timestamp=0)


def services_with(*rights: Right) -> Any:
    topics = [*topic("orders", ORDERS), *topic("secrets", SECRETS)]
    image = image_of(*topics, *rules(DESCRIBE_CLUSTER, *rights))
    access = AccessControl(AuthorizationSettings(authorizer="riverrun"), lambda: image)
    metadata = SimpleNamespace(current=image)
    return cast(Any, SimpleNamespace(metadata=metadata, access=access, configs=make_configs()))


def seen(records: list[Record], *rights: Right) -> list[MetadataEvent]:
    decoded = [DecodedRecord(100 + place, record) for place, record in enumerate(records)]
    return events_of_batch(decoded, 0, naming_for(services_with(*rights), ANN))


def quota() -> Record:
    entity = EntityData(entity_type="user", entity_name="bob")
    return ClientQuotaRecord(entity=(entity,), key="producer_byte_rate", value=1000.0, remove=False)


def setting(kind: ConfigType, resource: str, name: str = "retention.ms") -> Record:
    return ConfigRecord(resource_type=int(kind), resource_name=resource, name=name, value="7")


def token(owner: str = "User:bob") -> Record:
    return DelegationTokenRecord(
        owner=owner, requester=owner, renewers=(), issue_timestamp=0, max_timestamp=9,
        expiration_timestamp=9, token_id="t1",
    )  # fmt: skip


def election(topic_id: UUID) -> Record:
    return PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=2, isr=(2,))


def on_topic(operation: AclOperation, name: str) -> Right:
    return operation, ResourceType.TOPIC, name


@pytest.mark.parametrize(
    ("records", "right"),
    [
        ([quota()], DESCRIBE_CONFIGS),
        (topic("secrets", SECRETS), on_topic(AclOperation.DESCRIBE, "secrets")),
        (topic("new", UUID(int=9)), on_topic(AclOperation.READ, "new")),
        ([RemoveTopicRecord(topic_id=SECRETS)], on_topic(AclOperation.DESCRIBE, "secrets")),
        ([election(SECRETS)], on_topic(AclOperation.DESCRIBE, "secrets")),
        ([ClearElrRecord(topic_name="secrets")], on_topic(AclOperation.WRITE, "secrets")),
        ([setting(ConfigType.TOPIC, "secrets")], on_topic(AclOperation.DESCRIBE, "secrets")),
        (
            [setting(ConfigType.TOPIC, "secrets")],
            on_topic(AclOperation.DESCRIBE_CONFIGS, "secrets"),
        ),
        (
            [setting(ConfigType.GROUP, "workers")],
            (AclOperation.DESCRIBE, ResourceType.GROUP, "workers"),
        ),
        ([token()], (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "t1")),
        ([token()], (AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob")),
        (
            [RemoveDelegationTokenRecord(token_id="t1")],
            (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "t1"),
        ),
    ],
)
def test_an_event_is_hidden_without_its_right(records: list[Record], right: Right) -> None:
    assert seen(records) == []
    assert len(seen(records, right)) == 1


def test_nodes_rules_and_users_need_the_right_on_the_cluster_alone() -> None:
    user = UserScramCredentialRecord(
        name="bob", mechanism=2, salt=b"", stored_key=b"", server_key=b"", iterations=4096
    )
    node = setting(ConfigType.BROKER, "1", "log.retention.ms")
    assert [event.kind for event in seen([*rules(DESCRIBE_CONFIGS), user, node])] == [
        "acl", "user", "config",
    ]  # fmt: skip


def test_own_tokens_are_visible() -> None:
    assert [event.subject for event in seen([token("User:ann")])] == ["User:ann"]


def test_an_event_of_many_topics_names_and_counts_the_visible_ones_alone() -> None:
    batch = [election(ORDERS), election(SECRETS), election(SECRETS)]
    (event,) = seen(batch, on_topic(AclOperation.DESCRIBE, "orders"))
    assert event.subject == "orders-0"
    assert (event.records, event.details["count"]) == (1, 1)
    assert "secrets" not in str(event)


@pytest.mark.parametrize(
    ("record", "right"),
    [
        (
            setting(ConfigType.TOPIC, "orders"),
            on_topic(AclOperation.DESCRIBE_CONFIGS, "orders"),
        ),
        (
            setting(ConfigType.GROUP, "g", "consumer.session.timeout.ms"),
            (AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP, "g"),
        ),
        (setting(ConfigType.BROKER, "1", "log.retention.ms"), DESCRIBE_CONFIGS),
    ],
)
def test_values_of_settings_need_the_right_on_their_resource(record: Record, right: Right) -> None:
    assert isinstance(record, ConfigRecord)
    listed = (
        on_topic(AclOperation.DESCRIBE, "orders"),
        (AclOperation.DESCRIBE, ResourceType.GROUP, "g"),
    )
    (hidden,) = seen([record], *listed)
    assert hidden.details["set"] == {record.name: HIDDEN}
    (shown,) = seen([record], *listed, right)
    assert shown.details["set"] == {record.name: "7"}


def test_settings_of_a_new_topic_are_hidden_without_their_right() -> None:
    batch = [*topic("new", UUID(int=9)), setting(ConfigType.TOPIC, "new")]
    (event,) = seen(batch, on_topic(AclOperation.DESCRIBE, "new"))
    assert event.details["configs"] == {"retention.ms": HIDDEN}


def test_a_difference_has_words_for_what_is_stored_like_a_plan() -> None:
    before = image_of(*topic("orders", ORDERS))
    after = image_of(*(setting(ConfigType.PLAN, name) for name in (AWAY, "p-7")), base=before)
    found = changes_between(before, after, naming_for(services_with(DESCRIBE_CLUSTER), ANN))
    subjects = [change.subject for change in found if change is not None]
    assert subjects == ["nodes that are away", "plan p-7"]


def test_a_difference_has_the_visible_changes_alone() -> None:
    before = image_of(*topic("orders", ORDERS), *topic("secrets", SECRETS))
    changes = [
        quota(), token(), election(ORDERS), election(SECRETS), *topic("hidden", UUID(int=8)),
        setting(ConfigType.TOPIC, "secrets"), setting(ConfigType.TOPIC, "orders"),
    ]  # fmt: skip
    after = image_of(*changes, base=before)

    def subjects(*rights: Right) -> list[str]:
        naming = naming_for(services_with(*rights), ANN)
        found = changes_between(before, after, naming)
        return [change.subject for change in found if change is not None]

    assert subjects() == []
    assert subjects(on_topic(AclOperation.DESCRIBE, "orders")) == ["orders-0", "topic orders"]
    assert subjects(DESCRIBE_CONFIGS) == ["user bob"]


def test_traffic_has_the_topics_that_may_be_described() -> None:
    means = TrafficMeans()
    rates = {name: TopicRates(100.0, 50.0) for name in ("orders", "secrets")}
    led = {"orders": 1, "secrets": 1}
    for now in (10.0, 20.0):
        means.add(now, 10.0, rates=rates, counted=rates, led=led, bytes_replicated=0.0)
    led_now = {0: SimpleNamespace(is_leader=True)}
    replicas = SimpleNamespace(by_name=dict.fromkeys((*rates, "orders-2", "secrets-2"), led_now))

    def answered(*rights: Right) -> BrokerTraffic:
        services = services_with(*rights)
        services.clock, services.facts = SystemClock(), SimpleNamespace(traffic=means)
        services.replicas = replicas
        response = asyncio.run(handle(services, ANN, DescribeNodeRequest(subject="traffic")))
        return msgspec.json.decode(response.content, type=BrokerTraffic)

    assert answered().topics == {}
    assert answered().bytes_in == pytest.approx(200.0), "the node as a whole"
    assert list(answered(on_topic(AclOperation.DESCRIBE, "orders")).topics) == ["orders"]
