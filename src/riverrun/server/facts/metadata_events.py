"""Metadata records as events in words, for the timeline of the cluster.

The records of one batch were decided together. Records about the same subject become one event: a
new topic with its partitions and settings, or the elections of a failover. Secrets never appear:
no credentials, and no values of passwords. Records that the reader may not see are left out before
they are grouped, so that no event counts or names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from msgspec import Struct

from riverrun.metadata.image import ConfigType
from riverrun.metadata.quorum import read_voters
from riverrun.metadata.records import (
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord
from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
from riverrun.metadata.schema.fence_broker_record import FenceBrokerRecord
from riverrun.metadata.schema.leader_change_message import LeaderChangeMessage
from riverrun.metadata.schema.remove_access_control_entry_record import (
    RemoveAccessControlEntryRecord,
)
from riverrun.metadata.schema.remove_delegation_token_record import RemoveDelegationTokenRecord
from riverrun.metadata.schema.remove_user_scram_credential_record import (
    RemoveUserScramCredentialRecord,
)
from riverrun.metadata.schema.unfence_broker_record import UnfenceBrokerRecord
from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
from riverrun.model.ids import TopicId
from riverrun.records.record import ControlType
from riverrun.security.acls import AclOperation, AclPermission, PatternType, ResourceType
from riverrun.server.facts.plan_events import plan_in_words
from riverrun.wire.stored import read_body

if TYPE_CHECKING:
    from riverrun.server.facts.visibility import MetadataVisibility

KINDS: Final = (
    "election", "isr", "topic", "config", "broker", "acl", "user", "quota", "move", "feature",
    "quorum", "other",
)  # fmt: skip
PARTITIONS_SHOWN_MAX: Final = 50
EVENTS_PER_KIND_MAX: Final = 20
"""Of one batch. More events of a kind become one."""
TEXT_CHARACTERS_MAX: Final = 500
HIDDEN: Final = "(hidden)"
SCRAM_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_FENCED, _UNFENCED = 1, -1


class MetadataEvent(Struct, frozen=True, kw_only=True):
    """One change. ``offset`` is that of its first record."""

    offset: int
    time_ms: int
    kind: str
    text: str
    subject: str
    details: dict[str, Any]
    records: int = 1


class DecodedRecord(Struct, frozen=True):
    """A record of the metadata log; a control record has a type and a value instead."""

    offset: int
    record: Any = None
    control: ControlType | None = None
    value: bytes = b""


class Naming:
    """Names of topics by id, and what the reader may see."""

    def __init__(
        self, name_of: Callable[[TopicId], str | None], visibility: MetadataVisibility
    ) -> None:
        self._name_of = name_of
        self.visibility = visibility
        self._seen: dict[UUID, str] = {}

    def learn(self, record: TopicRecord) -> None:
        """The name of a topic that may have been deleted since."""
        if record.topic_id is not None:
            self._seen[record.topic_id] = record.name

    def topic(self, topic_id: UUID | None) -> str:
        if topic_id is None:
            return "(unknown topic)"
        return self._known(topic_id) or f"(deleted topic {topic_id})"

    def _known(self, topic_id: UUID) -> str | None:
        return self._name_of(TopicId(topic_id)) or self._seen.get(topic_id)

    def sees(self, record: object) -> bool:
        """Whether the reader may see a record. Of a deleted topic perhaps only the id is known; an
        id tells nothing about the topic."""
        match record:
            case TopicRecord():
                return self.visibility.sees_topic(record.name)
            case PartitionRecord() | PartitionChangeRecord() | RemoveTopicRecord():
                name = None if record.topic_id is None else self._known(record.topic_id)
                return name is None or self.visibility.sees_topic(name)
            case ClearElrRecord():
                return not record.topic_name or self.visibility.sees_topic(record.topic_name)
            case ConfigRecord():
                return self.visibility.sees_settings_of(record.resource_type, record.resource_name)
            case ClientQuotaRecord():
                return self.visibility.sees_quotas()
            case DelegationTokenRecord():
                return self.visibility.sees_token(record)
            case RemoveDelegationTokenRecord():
                return self.visibility.sees_token_id(record.token_id)
        return True

    def value(self, record: ConfigRecord) -> str | None:
        if record.value is None:
            return None
        place = record.resource_type, record.resource_name
        if self.visibility.sees_value(*place, record.name):
            return record.value[:TEXT_CHARACTERS_MAX]
        return HIDDEN


def events_of_batch(
    records: Sequence[DecodedRecord], time_ms: int, naming: Naming
) -> list[MetadataEvent]:
    """The events of the records of one batch, oldest first."""
    building = _BatchEvents(time_ms, naming)
    for record in records:
        if isinstance(record.record, TopicRecord):
            naming.learn(record.record)
        if naming.sees(record.record):
            building.add(record)
    return _limited(building.finish())


class _BatchEvents:
    def __init__(self, time_ms: int, naming: Naming) -> None:
        self._time_ms = time_ms
        self._naming = naming
        self._events: list[MetadataEvent] = []
        self._created: dict[UUID, tuple[int, TopicRecord]] = {}
        self._grown: dict[UUID, tuple[int, list[PartitionRecord]]] = {}
        self._configs: dict[tuple[int, str], tuple[int, list[ConfigRecord]]] = {}
        self._changes: dict[str, tuple[int, list[PartitionChangeRecord]]] = {}

    def add(self, decoded: DecodedRecord) -> None:
        offset, record = decoded.offset, decoded.record
        match record:
            case None:
                self._control(decoded)
            case TopicRecord():
                if record.topic_id is not None:
                    self._created[record.topic_id] = offset, record
            case PartitionRecord() if record.topic_id is not None:
                self._grown.setdefault(record.topic_id, (offset, []))[1].append(record)
            case ConfigRecord():
                key = record.resource_type, record.resource_name
                self._configs.setdefault(key, (offset, []))[1].append(record)
            case PartitionChangeRecord():
                kind = kind_of_change(record)
                self._changes.setdefault(kind, (offset, []))[1].append(record)
            case RemoveTopicRecord():
                name = self._naming.topic(record.topic_id)
                self._event(offset, "topic", f"Topic {name} was deleted.", name)
            case _:
                described = _of_broker(record) or _of_access(record) or _of_cluster(record)
                if described is not None:
                    kind, subject, text, details = described
                    self._event(offset, kind, text, subject, details)

    def finish(self) -> list[MetadataEvent]:
        for topic_id, (offset, record) in self._created.items():
            self._topic_created(offset, topic_id, record)
        for topic_id, (offset, partitions) in self._grown.items():
            name = self._naming.topic(topic_id)
            count = len(partitions)
            text = f"Topic {name} got {_counted(count, 'new partition')}."
            self._event(offset, "topic", text, name, {"partitions": count}, records=count)
        for (resource, name), (offset, records) in self._configs.items():
            self._configured(offset, resource, name, records)
        for kind, (offset, changes) in self._changes.items():
            self._changed(offset, kind, changes)
        return sorted(self._events, key=lambda event: event.offset)

    def _event(
        self,
        offset: int,
        kind: str,
        text: str,
        subject: str,
        details: Mapping[str, Any] | None = None,
        *,
        records: int = 1,
    ) -> None:
        self._events.append(
            MetadataEvent(
                offset=offset,
                time_ms=self._time_ms,
                kind=kind,
                text=text[:TEXT_CHARACTERS_MAX],
                subject=subject,
                details=dict(details or {}),
                records=records,
            )
        )

    def _topic_created(self, offset: int, topic_id: UUID, record: TopicRecord) -> None:
        _, partitions = self._grown.pop(topic_id, (0, []))
        _, configs = self._configs.pop((ConfigType.TOPIC, record.name), (0, []))
        replicas = len(partitions[0].replicas) if partitions else 0
        details = {
            "partitions": len(partitions),
            "replication_factor": replicas,
            "configs": {one.name: self._naming.value(one) for one in configs},
        }
        count = _counted(len(partitions), "partition")
        text = f"Topic {record.name} was created with {count} and {_counted(replicas, 'replica')}."
        number = 1 + len(partitions) + len(configs)
        self._event(offset, "topic", text, record.name, details, records=number)

    def _configured(
        self, offset: int, kind: int, name: str, records: Sequence[ConfigRecord]
    ) -> None:
        if kind == ConfigType.PLAN:
            event_kind, subject, text = plan_in_words(name, records)
            self._event(offset, event_kind, text, subject, records=len(records))
            return
        subject = resource_in_words(kind, name)
        values = {one.name: self._naming.value(one) for one in records}
        parts = [
            f"{key} was reset" if value is None else f"{key} = {value}"
            for key, value in values.items()
        ]
        text = f"{subject[:1].upper()}{subject[1:]}: {', '.join(parts)}."
        self._event(offset, "config", text, subject, {"set": values}, records=len(records))

    def _changed(self, offset: int, kind: str, changes: Sequence[PartitionChangeRecord]) -> None:
        rows = [self._change_row(change) for change in changes[:PARTITIONS_SHOWN_MAX]]
        details = {"partitions": rows, "count": len(changes)}
        if len(changes) == 1:
            place = f"{rows[0]['topic']}-{rows[0]['partition']}"
            text = f"{place}: {_change_in_words(changes[0])}."
            self._event(offset, kind, text, place, details)
            return
        topics = list(dict.fromkeys(self._naming.topic(change.topic_id) for change in changes))
        subject = topics[0] if len(topics) == 1 else f"{len(topics)} topics"
        text = f"{_MANY[kind].format(count=f'{len(changes):,}')} ({subject})."
        self._event(offset, kind, text, subject, details, records=len(changes))

    def _change_row(self, change: PartitionChangeRecord) -> dict[str, Any]:
        row: dict[str, Any] = {
            "topic": self._naming.topic(change.topic_id),
            "partition": change.partition_id,
        }
        if change.leader != NO_LEADER_CHANGE:
            row["leader"] = change.leader
        for name in ("isr", "replicas", "adding_replicas", "removing_replicas"):
            if (value := getattr(change, name)) is not None:
                row[name] = list(value)
        return row

    def _control(self, decoded: DecodedRecord) -> None:
        if decoded.control is ControlType.LEADER_CHANGE:
            message, _ = read_body(LeaderChangeMessage, 0, decoded.value)
            text = f"Node {message.leader_id} was elected as the active controller."
            subject = f"node {message.leader_id}"
            self._event(decoded.offset, "quorum", text, subject, {"leader": message.leader_id})
        elif decoded.control is ControlType.KRAFT_VOTERS:
            voters = [int(voter.id) for voter in read_voters(decoded.value)]
            text = f"The voters of the metadata quorum are {_listed(voters)}."
            self._event(decoded.offset, "quorum", text, "quorum", {"voters": voters})


_MANY: Final = {
    "election": "{count} partitions have new leaders",
    "isr": "The in-sync replicas of {count} partitions changed",
    "move": "The replicas of {count} partitions change",
    "other": "{count} partitions changed",
}


def kind_of_change(change: PartitionChangeRecord) -> str:
    if change.leader != NO_LEADER_CHANGE:
        return "election"
    if any(
        one is not None
        for one in (change.replicas, change.adding_replicas, change.removing_replicas)
    ):
        return "move"
    is_of_isr = change.isr is not None or change.eligible_leader_replicas is not None
    return "isr" if is_of_isr else "other"


def _change_in_words(change: PartitionChangeRecord) -> str:
    parts = []
    if change.leader != NO_LEADER_CHANGE:
        has_leader = change.leader >= 0
        parts.append(f"node {change.leader} leads" if has_leader else "there is no leader")
    if change.replicas is not None:
        parts.append(f"replicas are {_listed(change.replicas)}")
    if change.adding_replicas:
        parts.append(f"replicas on {_listed(change.adding_replicas)} are added")
    if change.removing_replicas:
        parts.append(f"replicas on {_listed(change.removing_replicas)} leave")
    if change.isr is not None:
        parts.append(f"in sync are {_listed(change.isr)}")
    return ", ".join(parts) or "details changed"


Described = tuple[str, str, str, Mapping[str, Any]]
"""Kind, subject, text and details."""


def _of_broker(record: object) -> Described | None:
    match record:
        case RegisterBrokerRecord():
            subject = f"node {record.broker_id}"
            places = [f"{at.host}:{at.port}" for at in record.end_points]
            details = {"endpoints": places, "rack": record.rack, "epoch": record.broker_epoch}
            text = f"Node {record.broker_id} registered at {', '.join(places)}."
            return "broker", subject, text, details
        case UnregisterBrokerRecord():
            text = f"Node {record.broker_id} was removed from the cluster."
            return "broker", f"node {record.broker_id}", text, {}
        case BrokerRegistrationChangeRecord():
            return _registration_change(record)
        case FenceBrokerRecord():
            return "broker", f"node {record.id}", f"Node {record.id} was fenced.", {}
        case UnfenceBrokerRecord():
            return "broker", f"node {record.id}", f"Node {record.id} was unfenced.", {}
        case RegisterControllerRecord():
            text = f"Controller {record.controller_id} registered."
            return "quorum", f"node {record.controller_id}", text, {}
    return None


def _registration_change(record: BrokerRegistrationChangeRecord) -> Described:
    parts = []
    if record.fenced == _FENCED:
        parts.append("does not respond and was fenced")
    elif record.fenced == _UNFENCED:
        parts.append("is ready")
    if record.in_controlled_shutdown == 1:
        parts.append("is shutting down")
    if record.cordoned_log_dirs is not None:
        parts.append("was cordoned" if record.cordoned_log_dirs else "is no longer cordoned")
    text = f"Node {record.broker_id} {' and '.join(parts) or 'changed its registration'}."
    details = {"fenced": record.fenced, "shutting_down": bool(record.in_controlled_shutdown)}
    return "broker", f"node {record.broker_id}", text, details


def _of_access(record: object) -> Described | None:
    match record:
        case AccessControlEntryRecord():
            rule = rule_in_words(record)
            details = {"id": str(record.id), "host": record.host}
            return "acl", record.principal, f"Rule added: {rule}.", details
        case RemoveAccessControlEntryRecord():
            return "acl", str(record.id), "A rule was removed.", {"id": str(record.id)}
        case UserScramCredentialRecord():
            mechanism = SCRAM_MECHANISMS.get(record.mechanism, str(record.mechanism))
            facts = {"mechanism": mechanism, "iterations": record.iterations}
            return "user", record.name, f"User {record.name} got a password.", facts
        case RemoveUserScramCredentialRecord():
            mechanism = SCRAM_MECHANISMS.get(record.mechanism, str(record.mechanism))
            text = f"A password of user {record.name} was removed."
            return "user", record.name, text, {"mechanism": mechanism}
        case DelegationTokenRecord():
            text = f"{record.owner} has a token until {record.expiration_timestamp}."
            return "user", record.owner, text, {"expires_ms": record.expiration_timestamp}
        case RemoveDelegationTokenRecord():
            return "user", "token", "A token was removed.", {}
        case ClientQuotaRecord():
            subject = entity_in_words(record)
            limit = "has no limit" if record.remove else f"is {record.value:g}"
            text = f"Quota of {subject}: {record.key} {limit}."
            value = None if record.remove else record.value
            return "quota", subject, text, {"name": record.key, "value": value}
    return None


def _of_cluster(record: object) -> Described | None:
    match record:
        case FeatureLevelRecord():
            text = f"The level of {record.name} is {record.feature_level}."
            return "feature", record.name, text, {"level": record.feature_level}
        case ProducerIdsRecord():
            text = f"Node {record.broker_id} got producer ids up to {record.next_producer_id}."
            return "other", f"node {record.broker_id}", text, {}
        case ClearElrRecord():
            subject = record.topic_name or "all topics"
            return "other", subject, f"Eligible leader replicas of {subject} were cleared.", {}
    return None  # records without an effect, and the borders of transactions


def resource_in_words(kind: int, name: str) -> str:
    match kind:
        case ConfigType.TOPIC:
            return f"topic {name}"
        case ConfigType.BROKER:
            return f"node {name}" if name else "all nodes"
        case ConfigType.GROUP:
            return f"group {name}"
    return name or "the cluster"


def rule_in_words(record: AccessControlEntryRecord) -> str:
    verb = "may" if record.permission_type == AclPermission.ALLOW else "may not"
    operation = _member(AclOperation, record.operation)
    kind = _member(ResourceType, record.resource_type).lower().replace("_", " ")
    is_prefix = record.pattern_type == PatternType.PREFIXED
    resource = f"{kind} {record.resource_name}{'…' if is_prefix else ''}"
    return f"{record.principal} {verb} {operation} {resource}"


def entity_in_words(record: ClientQuotaRecord) -> str:
    parts = [
        f"{part.entity_type} {'(default)' if part.entity_name is None else part.entity_name}"
        for part in record.entity
    ]
    return " and ".join(parts) or "all clients"


def _member(kind: type[AclOperation] | type[ResourceType], number: int) -> str:
    return kind(number).name if number in kind._value2member_map_ else str(number)


def _limited(events: list[MetadataEvent]) -> list[MetadataEvent]:
    """Many events of one kind in one batch become one event."""
    by_kind: dict[str, list[MetadataEvent]] = {}
    for event in events:
        by_kind.setdefault(event.kind, []).append(event)
    found: list[MetadataEvent] = []
    for kind, some in by_kind.items():
        if len(some) <= EVENTS_PER_KIND_MAX:
            found += some
            continue
        first = some[0]
        details = {"texts": [event.text for event in some[:EVENTS_PER_KIND_MAX]]}
        found.append(
            MetadataEvent(
                offset=first.offset,
                time_ms=first.time_ms,
                kind=kind,
                text=f"{len(some):,} changes at once. The first: {first.text}",
                subject=f"{len(some):,} changes",
                details={**details, "count": len(some)},
                records=sum(event.records for event in some),
            )
        )
    return sorted(found, key=lambda event: event.offset)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers) or "none"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
