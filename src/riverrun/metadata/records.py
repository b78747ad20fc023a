"""The records of the metadata log: their classes and their stored form.

A stored record is three unsigned varints (frame version 1, api key, version) and the record. We
write the newest version of each, as metadata.version 30 requires, and read all of them. Classes
that we never write are loaded when one is met.
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from riverrun.metadata.schema.abort_transaction_record import AbortTransactionRecord
from riverrun.metadata.schema.broker_registration_change_record import (
    BrokerRegistrationChangeRecord,
)
from riverrun.metadata.schema.clear_elr_record import ClearElrRecord
from riverrun.metadata.schema.config_record import ConfigRecord
from riverrun.metadata.schema.feature_level_record import FeatureLevelRecord
from riverrun.metadata.schema.partition_change_record import PartitionChangeRecord
from riverrun.metadata.schema.partition_record import PartitionRecord
from riverrun.metadata.schema.producer_ids_record import ProducerIdsRecord
from riverrun.metadata.schema.register_broker_record import (
    BrokerEndpoint,
    BrokerFeature,
    RegisterBrokerRecord,
)
from riverrun.metadata.schema.register_controller_record import (
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
)
from riverrun.metadata.schema.remove_topic_record import RemoveTopicRecord
from riverrun.metadata.schema.topic_record import TopicRecord
from riverrun.metadata.schema.unregister_broker_record import UnregisterBrokerRecord
from riverrun.wire.stored import UnknownRecord, read_body, versions, write_body

if TYPE_CHECKING:
    from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
    from riverrun.metadata.schema.begin_transaction_record import BeginTransactionRecord
    from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord
    from riverrun.metadata.schema.delegation_token_record import DelegationTokenRecord
    from riverrun.metadata.schema.end_transaction_record import EndTransactionRecord
    from riverrun.metadata.schema.fence_broker_record import FenceBrokerRecord
    from riverrun.metadata.schema.no_op_record import NoOpRecord
    from riverrun.metadata.schema.remove_access_control_entry_record import (
        RemoveAccessControlEntryRecord,
    )
    from riverrun.metadata.schema.remove_delegation_token_record import (
        RemoveDelegationTokenRecord,
    )
    from riverrun.metadata.schema.remove_user_scram_credential_record import (
        RemoveUserScramCredentialRecord,
    )
    from riverrun.metadata.schema.unfence_broker_record import UnfenceBrokerRecord
    from riverrun.metadata.schema.user_scram_credential_record import UserScramCredentialRecord
    from riverrun.metadata.schema.zk_migration_state_record import ZkMigrationStateRecord

    Record: TypeAlias = (
        AbortTransactionRecord
        | AccessControlEntryRecord
        | BeginTransactionRecord
        | BrokerRegistrationChangeRecord
        | ClearElrRecord
        | ClientQuotaRecord
        | ConfigRecord
        | DelegationTokenRecord
        | EndTransactionRecord
        | FeatureLevelRecord
        | FenceBrokerRecord
        | NoOpRecord
        | PartitionChangeRecord
        | PartitionRecord
        | ProducerIdsRecord
        | RegisterBrokerRecord
        | RegisterControllerRecord
        | RemoveAccessControlEntryRecord
        | RemoveDelegationTokenRecord
        | RemoveTopicRecord
        | RemoveUserScramCredentialRecord
        | TopicRecord
        | UnfenceBrokerRecord
        | UnregisterBrokerRecord
        | UserScramCredentialRecord
        | ZkMigrationStateRecord
    )
else:
    Record = object  # a narrower type would require loading all of them

__all__ = [
    "METADATA_VERSION",
    "METADATA_VERSION_FEATURE",
    "AbortTransactionRecord",
    "BrokerEndpoint",
    "BrokerFeature",
    "BrokerRegistrationChangeRecord",
    "ClearElrRecord",
    "ConfigRecord",
    "ControllerEndpoint",
    "ControllerFeature",
    "FeatureLevelRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerIdsRecord",
    "Record",
    "RegisterBrokerRecord",
    "RegisterControllerRecord",
    "RemoveTopicRecord",
    "TopicRecord",
    "UnknownRecord",
    "UnregisterBrokerRecord",
    "decode",
    "encode",
]

METADATA_VERSION_FEATURE: Final = "metadata.version"
METADATA_VERSION: Final = 30
"""4.3-IV0: the newest that we write. It determines the versions of all records."""

FRAME_VERSION: Final = 1
NO_LEADER_CHANGE: Final = -2

PARTITION_RECORD: Final = PartitionRecord.API_KEY
PARTITION_RECORD_VERSION: Final = 2
CHANGE_RECORD: Final = PartitionChangeRecord.API_KEY
CHANGE_RECORD_VERSION: Final = 2

MODULES: Final = {
    0: "register_broker_record",
    1: "unregister_broker_record",
    2: "topic_record",
    3: "partition_record",
    4: "config_record",
    5: "partition_change_record",
    7: "fence_broker_record",
    8: "unfence_broker_record",
    9: "remove_topic_record",
    10: "delegation_token_record",
    11: "user_scram_credential_record",
    12: "feature_level_record",
    14: "client_quota_record",
    15: "producer_ids_record",
    17: "broker_registration_change_record",
    18: "access_control_entry_record",
    19: "remove_access_control_entry_record",
    20: "no_op_record",
    21: "zk_migration_state_record",
    22: "remove_user_scram_credential_record",
    23: "begin_transaction_record",
    24: "end_transaction_record",
    25: "abort_transaction_record",
    26: "remove_delegation_token_record",
    27: "register_controller_record",
    28: "clear_elr_record",
}


def encode(record: Record) -> bytes:
    """The record as stored in the log."""
    version = versions(type(record))[-1]
    assert record.API_KEY < 128 and version < 128, f"{record} needs longer varints"
    return bytes((FRAME_VERSION, record.API_KEY, version)) + write_body(record, version)


def decode(data: bytes | memoryview) -> Record:
    """The stored record, of any version; ``UnknownRecord`` if it is invalid."""
    if len(data) < 3 or max(data[:3]) > 127:
        raise UnknownRecord(f"{bytes(data[:8])!r} does not begin as a metadata record")
    frame, key, version = data[0], data[1], data[2]
    if frame != FRAME_VERSION:
        raise UnknownRecord(f"frame version {frame} of a metadata record is not known")
    if key == PARTITION_RECORD and version == PARTITION_RECORD_VERSION:
        partition = _decode_partition(data)
        if partition is not None:
            return partition
    elif key == CHANGE_RECORD and version == CHANGE_RECORD_VERSION:
        change = _decode_change(data)
        if change is not None:
            return change
    record, end = read_body(record_class(key), version, data, 3)
    if end != len(data):
        raise UnknownRecord(f"{len(data) - end} bytes follow a {type(record).__name__}")
    return record


@cache
def record_class(key: int) -> type[Record]:
    """The class of a record by its api key."""
    if key not in MODULES:
        raise UnknownRecord(f"metadata record {key} is not known")
    found: type[Record] = import_module(f"riverrun.metadata.schema.{MODULES[key]}").MESSAGE
    return found


_PARTITION_HEAD = struct.Struct(">i16s")
_PARTITION_TAIL = struct.Struct(">iiiB")
_INTS = tuple(struct.Struct(f">{count}i") for count in range(16))
_NO_TAGS = b"\x00"
_LEADER_TAG: Final = 1
_ISR_TAG: Final = 0
_ELR_TAG: Final = 6
_LAST_KNOWN_TAG: Final = 7
_LIST_TAGS: Final = (_ISR_TAG, _ELR_TAG, _LAST_KNOWN_TAG)


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID | None:
    """Ids repeat often: each topic's with its partitions, each directory's everywhere."""
    return UUID(bytes=raw) if any(raw) else None


def _decode_partition(data: bytes | memoryview) -> PartitionRecord | None:
    """Decode a partition in its common form by hand; None leaves it to the compiled reader.

    Partitions are most of what a start reads, and this takes a third of the time.
    """
    try:
        partition, topic = _PARTITION_HEAD.unpack_from(data, 3)
        at = 23
        lists = []
        for _ in range(4):
            count = data[at] - 1
            if count < 0:
                return None
            lists.append(_INTS[count].unpack_from(data, at + 1))
            at += 1 + 4 * count
        leader, leader_epoch, partition_epoch, count = _PARTITION_TAIL.unpack_from(data, at)
        at += _PARTITION_TAIL.size
        end = at + 16 * (count - 1)
        if count == 0 or count > 0x7F or data[end:] != _NO_TAGS:
            return None
    except (struct.error, IndexError):
        return None
    return PartitionRecord(
        partition_id=partition,
        topic_id=_uuid(topic),
        replicas=lists[0],
        isr=lists[1],
        removing_replicas=lists[2],
        adding_replicas=lists[3],
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        directories=tuple([_uuid(bytes(data[place : place + 16])) for place in range(at, end, 16)]),
    )


def _decode_change(data: bytes | memoryview) -> PartitionChangeRecord | None:
    """Decode a change of ISR and leader, as in a failover, by hand; None as above."""
    try:
        partition, topic = _PARTITION_HEAD.unpack_from(data, 3)
        at, before = 24, -1
        leader = NO_LEADER_CHANGE
        lists: dict[int, tuple[int, ...]] = {}
        for _ in range(data[23]):
            tag, size = data[at], data[at + 1]
            at += 2
            if tag <= before:
                return None
            if tag == _LEADER_TAG and size == 4:
                leader = _INTS[1].unpack_from(data, at)[0]
            elif tag in _LIST_TAGS and data[at] and size == 4 * data[at] - 3:
                lists[tag] = _INTS[data[at] - 1].unpack_from(data, at + 1)
            else:
                return None
            at, before = at + size, tag
    except (struct.error, IndexError):
        return None
    if at != len(data):
        return None
    return PartitionChangeRecord(
        partition_id=partition,
        topic_id=_uuid(topic),
        isr=lists.get(_ISR_TAG),
        leader=leader,
        eligible_leader_replicas=lists.get(_ELR_TAG),
        last_known_elr=lists.get(_LAST_KNOWN_TAG),
    )
