"""Kafka's APIs: their numbers, names and versions, and which of them riverrun serves.

The versions are those of Apache Kafka 4.3. docs/compatibility.md is generated from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct


class ApiKey(IntEnum):
    """The API number at the start of a request."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    DISCOVER_NODE = 30_000
    FORM_CLUSTER = 30_001
    VERIFY_REPLICA = 30_002
    DESCRIBE_QUOTA_USE = 30_003
    APPEND_AUDIT = 30_004
    DESCRIBE_NODE = 30_005


class Api(Struct, frozen=True):
    """An API with its versions in Kafka 4.3."""

    key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int
    """The first version with compact lengths and tagged fields (KIP-482)."""

    @property
    def name(self) -> str:
        """The name of its modules: ``list_offsets``."""
        return self.key.name.lower()

    @property
    def title(self) -> str:
        """The name in Kafka's documentation: ``ListOffsets``."""
        return "".join(word.capitalize() for word in self.key.name.split("_"))

    @property
    def advertised_min_version(self) -> int:
        """The first version in ApiVersions responses.

        Produce 0 to 2 are advertised but rejected: without them older librdkafka assumes that the
        broker cannot compress (KAFKA-18659).
        """
        return 0 if self.key is ApiKey.PRODUCE else self.min_version

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


_TABLE: Final = (
    Api(ApiKey.PRODUCE, 3, 13, 9),
    Api(ApiKey.FETCH, 4, 18, 12),
    Api(ApiKey.LIST_OFFSETS, 1, 11, 6),
    Api(ApiKey.METADATA, 0, 13, 9),
    Api(ApiKey.OFFSET_COMMIT, 2, 10, 8),
    Api(ApiKey.OFFSET_FETCH, 1, 10, 6),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, 3),
    Api(ApiKey.JOIN_GROUP, 0, 9, 6),
    Api(ApiKey.HEARTBEAT, 0, 4, 4),
    Api(ApiKey.LEAVE_GROUP, 0, 5, 4),
    Api(ApiKey.SYNC_GROUP, 0, 5, 4),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5),
    Api(ApiKey.LIST_GROUPS, 0, 5, 3),
    Api(ApiKey.SASL_HANDSHAKE, 0, 1, 2),
    Api(ApiKey.API_VERSIONS, 0, 4, 3),
    Api(ApiKey.CREATE_TOPICS, 2, 7, 5),
    Api(ApiKey.DELETE_TOPICS, 1, 6, 4),
    Api(ApiKey.DELETE_RECORDS, 0, 2, 2),
    Api(ApiKey.INIT_PRODUCER_ID, 0, 5, 2),  # 6 is unstable in Kafka
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3),
    Api(ApiKey.END_TXN, 0, 5, 3),
    Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1),
    Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, 3),
    Api(ApiKey.DESCRIBE_ACLS, 1, 3, 2),
    Api(ApiKey.CREATE_ACLS, 1, 3, 2),
    Api(ApiKey.DELETE_ACLS, 1, 3, 2),
    Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, 2),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, 2),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, 2),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, 2),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, 2),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, 2),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, 2),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, 2),
    Api(ApiKey.DELETE_GROUPS, 0, 2, 2),
    Api(ApiKey.ELECT_LEADERS, 0, 2, 2),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0),
    Api(ApiKey.OFFSET_DELETE, 0, 0, 1),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0),
    Api(ApiKey.VOTE, 0, 2, 0),
    Api(ApiKey.BEGIN_QUORUM_EPOCH, 0, 1, 1),
    Api(ApiKey.END_QUORUM_EPOCH, 0, 1, 1),
    Api(ApiKey.DESCRIBE_QUORUM, 0, 2, 0),
    Api(ApiKey.ALTER_PARTITION, 2, 3, 2),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, 0),
    Api(ApiKey.ENVELOPE, 0, 0, 0),
    Api(ApiKey.FETCH_SNAPSHOT, 0, 1, 0),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0),
    Api(ApiKey.BROKER_REGISTRATION, 0, 4, 0),
    Api(ApiKey.BROKER_HEARTBEAT, 0, 2, 0),
    Api(ApiKey.UNREGISTER_BROKER, 0, 0, 0),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0),
    Api(ApiKey.LIST_TRANSACTIONS, 0, 2, 0),
    Api(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, 0),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0),
    Api(ApiKey.CONTROLLER_REGISTRATION, 0, 0, 0),
    Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, 0),
    Api(ApiKey.PUSH_TELEMETRY, 0, 0, 0),
    Api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, 0),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 1),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, 1),
    Api(ApiKey.SHARE_FETCH, 1, 2, 1),
    Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, 1),
    Api(ApiKey.ADD_RAFT_VOTER, 0, 1, 0),
    Api(ApiKey.REMOVE_RAFT_VOTER, 0, 0, 0),
    Api(ApiKey.UPDATE_RAFT_VOTER, 0, 0, 0),
    Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, 0),
    Api(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, 0),
    Api(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, 0),
    Api(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, 0),
    Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, 0),
    Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0, 0),
    Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0, 0),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, 0),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, 0),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, 0),
)

ALL_APIS: Final[Mapping[int, Api]] = MappingProxyType({api.key: api for api in _TABLE})
"""Every API of Kafka. Our client also connects to brokers that serve more than we do."""

PRIVATE_APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {
        ApiKey.DISCOVER_NODE: Api(ApiKey.DISCOVER_NODE, 0, 0, 0),
        ApiKey.FORM_CLUSTER: Api(ApiKey.FORM_CLUSTER, 0, 0, 0),
        ApiKey.VERIFY_REPLICA: Api(ApiKey.VERIFY_REPLICA, 0, 0, 0),
        ApiKey.DESCRIBE_QUOTA_USE: Api(ApiKey.DESCRIBE_QUOTA_USE, 0, 0, 0),
        ApiKey.APPEND_AUDIT: Api(ApiKey.APPEND_AUDIT, 0, 0, 0),
        ApiKey.DESCRIBE_NODE: Api(ApiKey.DESCRIBE_NODE, 0, 0, 0),
    }
)
"""APIs of riverrun nodes and its command line. Not advertised."""

KNOWN_APIS: Final[Mapping[int, Api]] = MappingProxyType({**ALL_APIS, **PRIVATE_APIS})

_SERVED: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DELETE_GROUPS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.OFFSET_DELETE,
    ApiKey.ELECT_LEADERS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.UPDATE_FEATURES,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
)

_SERVED_BY_CONTROLLERS: Final = (
    ApiKey.FETCH,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.ELECT_LEADERS,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ALTER_PARTITION,
    ApiKey.UPDATE_FEATURES,
    ApiKey.ENVELOPE,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.CONTROLLER_REGISTRATION,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.UPDATE_RAFT_VOTER,
)

APIS: Final[Mapping[int, Api]] = MappingProxyType({key: ALL_APIS[key] for key in _SERVED})
"""APIs advertised to clients. ``server/requests/<name>.py`` serves each."""

FEATURE_OF: Final[Mapping[int, str]] = MappingProxyType(
    {
        ApiKey.CONSUMER_GROUP_HEARTBEAT: "group.version",
        ApiKey.CONSUMER_GROUP_DESCRIBE: "group.version",
    }
)
"""APIs that are advertised only while a feature is finalised at 1 or higher."""

CONTROLLER_APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {key: ALL_APIS[key] for key in _SERVED_BY_CONTROLLERS}
)
"""APIs of the controller listener, which only nodes use."""

_ROUTED: Final[Mapping[int, Api]] = {ApiKey.DISCOVER_NODE: PRIVATE_APIS[ApiKey.DISCOVER_NODE]}
ROUTES: Final[Mapping[int, Api]] = MappingProxyType(
    {
        **APIS,
        **_ROUTED,
        ApiKey.VERIFY_REPLICA: PRIVATE_APIS[ApiKey.VERIFY_REPLICA],
        ApiKey.DESCRIBE_QUOTA_USE: PRIVATE_APIS[ApiKey.DESCRIBE_QUOTA_USE],
        ApiKey.APPEND_AUDIT: PRIVATE_APIS[ApiKey.APPEND_AUDIT],
        ApiKey.DESCRIBE_NODE: PRIVATE_APIS[ApiKey.DESCRIBE_NODE],
    }
)
"""APIs served to clients, including ones we do not advertise."""
CONTROLLER_ROUTES: Final[Mapping[int, Api]] = MappingProxyType({**CONTROLLER_APIS, **_ROUTED})

FORWARDED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
"""APIs that a broker forwards to the active controller in an Envelope request (KIP-590)."""
