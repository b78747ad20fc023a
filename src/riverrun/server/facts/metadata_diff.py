"""The difference between the metadata at two offsets.

The image at the first offset is replayed from the newest snapshot before it, and the second one
from there. All of it runs in slices, and only one comparison runs at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from riverrun.metadata.delta import Delta
from riverrun.metadata.entries import KINDS
from riverrun.metadata.image import (
    BrokerImage,
    ConfigKey,
    ConfigType,
    Image,
    PartitionImage,
    TopicImage,
)
from riverrun.metadata.loading import Loading
from riverrun.metadata.records import ConfigRecord
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord
from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
from riverrun.metadata.snapshot import BOOTSTRAP, InvalidSnapshot, Snapshot, SnapshotId
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.placement.planner.stored_plan import AWAY, DECOYS, ROLLBACKS, SUGGESTION
from riverrun.ports.aio import Yielder
from riverrun.server.facts.metadata_events import (
    SCRAM_MECHANISMS,
    Naming,
    entity_in_words,
    resource_in_words,
    rule_in_words,
)
from riverrun.server.facts.metadata_reader import MetadataReader

if TYPE_CHECKING:
    from riverrun.server.services import NodeServices

K = TypeVar("K")
V = TypeVar("V")

RECORDS_MAX: Final = 200_000
"""Records to replay for one comparison, without those of the snapshot."""
SNAPSHOT_BYTES_MAX: Final = 64 * 1024 * 1024
CHANGES_MAX: Final = 2000
MS_MIN: Final = 10**12
"""Larger numbers are times in ms, not offsets: the year 2001."""
CHUNK_BYTES: Final = 4 * 1024 * 1024


class DiffQuery(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: int
    """An offset, or a time in ms."""
    to: int


class MetadataChange(Struct, frozen=True, kw_only=True):
    """``before`` is None for what is new, ``after`` for what is gone."""

    kind: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class MetadataDifference(Struct, frozen=True, kw_only=True):
    """The records of (``from_offset``, ``to_offset``] made the changes."""

    from_offset: int
    to_offset: int
    first_offset: int
    """The earliest offset that can be compared."""
    changes: list[MetadataChange]
    total: int


class MetadataComparer:
    def __init__(self, services: NodeServices, turn: asyncio.Lock) -> None:
        self._services = services
        self._turn = turn

    async def compare(self, query: DiffQuery, naming: Naming) -> MetadataDifference:
        async with self._turn:
            reader = MetadataReader(self._services)
            first, last = (
                await self._offset(reader, query.from_),
                await self._offset(reader, query.to),
            )
            if first > last:
                first, last = last, first
            return await self._compare(reader, first, last, naming)

    async def _offset(self, reader: MetadataReader, number: int) -> int:
        """The offset of the last record that an image contains."""
        if number >= MS_MIN:
            number = await reader.offset_at(number) - 1
        return max(-1, min(number, reader.end_offset - 1))

    async def _compare(
        self, reader: MetadataReader, first: int, last: int, naming: Naming
    ) -> MetadataDifference:
        snapshots = await self._listed(reader)
        available = snapshots[0].offset - 1
        if first < available:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The metadata is available from offset {available} on: earlier records were "
                "replaced by a snapshot.",
            )
        snapshot = max(one for one in snapshots if one.offset - 1 <= first)
        if last - snapshot.offset > RECORDS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"More than {RECORDS_MAX:,} records are between these moments. Choose a shorter "
                "time.",
            )
        yielder = Yielder(self._services.clock)
        before = await self._replayed(reader, await self._load(snapshot, yielder), first, yielder)
        after = await self._replayed(reader, before, last, yielder)
        changes: list[MetadataChange] = []
        total = 0
        for change in changes_between(before, after, naming):
            await yielder.step()
            if change is not None:
                total += 1
                if len(changes) < CHANGES_MAX:
                    changes.append(change)
        return MetadataDifference(
            from_offset=first,
            to_offset=last,
            first_offset=available,
            changes=changes,
            total=total,
        )

    async def _listed(self, reader: MetadataReader) -> list[SnapshotId]:
        """The snapshots from which the log continues, oldest first."""
        store = self._services.metadata.store
        listed = await store.in_thread(store.snapshots.listed)
        known = [one for one in listed if one.offset >= reader.start_offset]
        if known:
            return known
        assert reader.start_offset == 0, "the log has no start, and there is no snapshot"
        return [BOOTSTRAP]

    async def _load(self, snapshot_id: SnapshotId, yielder: Yielder) -> Image:
        if snapshot_id.offset == 0:
            return Image()
        store = self._services.metadata.store
        parts: list[bytes] = []
        size = 0
        while part := await store.read_snapshot(snapshot_id, size, CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > SNAPSHOT_BYTES_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "The metadata is too large to be compared."
                )
        try:
            snapshot = await store.in_thread(lambda: Snapshot(b"".join(parts)))
        except InvalidSnapshot as error:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, str(error)) from None
        loading = Loading(snapshot_id, snapshot)
        await yielder.run(loading.steps())
        return loading.image()

    async def _replayed(
        self, reader: MetadataReader, image: Image, offset: int, yielder: Yielder
    ) -> Image:
        """The image at an offset, from an earlier one."""
        delta, epoch, time_ms = Delta(image), image.epoch, image.timestamp
        async for batch in reader.batches(image.offset + 1, offset + 1):
            for decoded in batch.records:
                if decoded.record is not None:
                    delta.replay(decoded.record)
                    await yielder.step()
            epoch = LeaderEpoch(batch.header.leader_epoch)
            time_ms = batch.time_ms
        return delta.publish(offset=Offset(offset), epoch=epoch, timestamp=time_ms)


def changes_between(before: Image, after: Image, naming: Naming) -> Iterator[MetadataChange | None]:
    """Every change that the reader may see; None after other pieces of work, so that the caller can
    yield."""
    yield from _topics(before, after, naming)
    for node, (old, new) in _pairs(before.brokers, after.brokers):
        yield _change("broker", f"node {node}", _broker(old), _broker(new))
    for key, (was, now) in _pairs(before.configs, after.configs):
        yield _config_change(key, was, now, naming)
    for name, (was_level, level) in _pairs(before.features, after.features):
        yield _change("feature", name, _level(was_level), _level(level))
    for kind in KINDS:
        for _, (old_entry, new_entry) in _pairs(before.entries_of(kind), after.entries_of(kind)):
            if naming.sees(new_entry if new_entry is not None else old_entry):
                yield _entry_change(old_entry, new_entry)


def _topics(before: Image, after: Image, naming: Naming) -> Iterator[MetadataChange | None]:
    for topic_id, (old, new) in _pairs(before.topics_by_id, after.topics_by_id):
        yield None
        either = new or old
        if either is not None and not naming.visibility.sees_topic(either.name):
            continue
        if old is None or new is None:
            assert either is not None, f"{topic_id} is in no image"
            yield _change("topic", either.name, _topic(old), _topic(new))
            continue
        if len(old.partitions) != len(new.partitions):
            yield _change("topic", new.name, _topic(old), _topic(new))
        for index, now in enumerate(new.partitions):
            was = old.partitions[index] if index < len(old.partitions) else None
            if was is not None and was is not now and was != now:
                yield _change(
                    _kind_of(was, now), f"{new.name}-{index}", _partition(was), _partition(now)
                )


def _pairs(
    before: Mapping[K, V], after: Mapping[K, V]
) -> Iterator[tuple[K, tuple[V | None, V | None]]]:
    """What differs, in the order of the log."""
    for key, old in before.items():
        new = after.get(key)
        if new is not old and new != old:
            yield key, (old, new)
    for key, new in after.items():
        if key not in before:
            yield key, (None, new)


def _change(
    kind: str, subject: str, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> MetadataChange | None:
    """Without a change that is not shown, such as a new password with the same facts."""
    if before == after and kind != "user":
        return None
    return MetadataChange(kind=kind, subject=subject, before=before, after=after)


def _kind_of(was: PartitionImage, now: PartitionImage) -> str:
    if was.leader != now.leader or was.leader_epoch != now.leader_epoch:
        return "election"
    if (was.replicas, was.adding, was.removing) != (now.replicas, now.adding, now.removing):
        return "move"
    return "isr"


def _topic(topic: TopicImage | None) -> dict[str, Any] | None:
    if topic is None:
        return None
    replicas = topic.partitions[0].replication_factor if topic.partitions else 0
    return {"partitions": len(topic.partitions), "replication_factor": replicas}


def _partition(partition: PartitionImage) -> dict[str, Any]:
    row: dict[str, Any] = {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
        "replicas": list(partition.replicas),
    }
    if partition.adding:
        row["adding"] = list(partition.adding)
    if partition.removing:
        row["removing"] = list(partition.removing)
    return row


def _broker(broker: BrokerImage | None) -> dict[str, Any] | None:
    if broker is None:
        return None
    return {
        "endpoints": [f"{at.host}:{at.port}" for at in broker.endpoints.values()],
        "rack": broker.rack,
        "epoch": broker.epoch,
        "is_fenced": broker.is_fenced,
        "is_shutting_down": broker.in_controlled_shutdown,
        "is_cordoned": bool(broker.cordoned_directories),
    }


def _level(level: int | None) -> dict[str, Any] | None:
    return None if level is None else {"level": level}


_NOT_PLANS: Final = {
    AWAY: "nodes that are away",
    DECOYS: "secret for logins of unknown users",
    ROLLBACKS: "reasons of undone moves",
    SUGGESTION: "suggestion to balance",
}
"""What is stored like a plan but is none."""


def _config_change(
    key: ConfigKey, was: Mapping[str, str] | None, now: Mapping[str, str] | None, naming: Naming
) -> MetadataChange | None:
    kind, name = key
    if kind is ConfigType.PLAN:
        return MetadataChange(
            kind="move",
            subject=_NOT_PLANS.get(name, f"plan {name}"),
            before=None if was is None else {"parts": len(was)},
            after=None if now is None else {"parts": len(now)},
        )
    if not naming.visibility.sees_settings_of(int(kind), name):
        return None
    changed = [
        one for one in dict.fromkeys([*(was or {}), *(now or {})])
        if (was or {}).get(one) != (now or {}).get(one)
    ]  # fmt: skip

    def shown(values: Mapping[str, str] | None) -> dict[str, Any] | None:
        if not values:
            return None
        return {
            one: naming.value(
                ConfigRecord(
                    resource_type=int(kind), resource_name=name, name=one, value=values[one]
                )
            )
            for one in changed
            if one in values
        }

    return MetadataChange(
        kind="config",
        subject=resource_in_words(int(kind), name),
        before=shown(was) or None,
        after=shown(now) or None,
    )


def _entry_change(old: object, new: object) -> MetadataChange | None:
    known = new if new is not None else old
    match known:
        case AccessControlEntryRecord():
            return _change("acl", known.principal, _entry(old), _entry(new))
        case UserScramCredentialRecord():
            return _change("user", known.name, _entry(old), _entry(new))
        case ClientQuotaRecord():
            return _change("quota", entity_in_words(known), _entry(old), _entry(new))
        case DelegationTokenRecord():
            return _change("user", known.owner, _entry(old), _entry(new))
    return None


def _entry(record: object) -> dict[str, Any] | None:
    match record:
        case AccessControlEntryRecord():
            return {"rule": rule_in_words(record), "host": record.host}
        case UserScramCredentialRecord():
            mechanism = SCRAM_MECHANISMS.get(record.mechanism, str(record.mechanism))
            return {"mechanism": mechanism, "iterations": record.iterations}
        case ClientQuotaRecord():
            return {record.key: record.value}
        case DelegationTokenRecord():
            return {"expires_ms": record.expiration_timestamp}
    return None
