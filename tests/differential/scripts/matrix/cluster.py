"""Calls about the cluster: rules, quotas, users, settings, leaders, features and voters.

Requests with the right change nothing: they name brokers and users that do not exist, or only
validate.
"""

from typing import Any

from riverrun.security.acls import AclOperation as Op
from riverrun.security.acls import ResourceType
from tests.differential.script import Script
from tests.differential.scripts.matrix.rights import on_cluster
from tests.differential.scripts.matrix.table import (
    UNKNOWN_ID,
    Fields,
    GuardedCall,
    Stock,
    try_all,
)
from tests.differential.scripts.matrix.topics import without_brokers

NOBODY_NAME = "nobody"
NO_BROKER = 99
CONFIG_BROKER, CONFIG_LOGGER, CONFIG_METRICS = 4, 8, 16


def _codes(response: Any) -> Any:
    """Only the error code, where another script compares the rest."""
    return {"error_code": response["error_code"]}


def _rule(stock: Stock) -> Fields:
    rule = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": stock.name("orders"),
        "resource_pattern_type": 3,
        "principal": f"User:{stock.name('nobody')}",
        "host": "*",
        "operation": Op.READ,
        "permission_type": 3,
    }
    return {"creations": [rule, {**rule, "operation": Op.WRITE}]}


def _rules(stock: Stock) -> Fields:
    return {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "principal_filter": f"User:{stock.name('nobody')}",
        "operation": 1,
        "permission_type": 1,
    }


def _quotas(stock: Stock) -> Fields:
    row = {"entity_type": "user", "match_type": 0, "match": stock.name("nobody")}
    return {"components": [row], "strict": True}


def _alter_quotas(stock: Stock) -> Fields:
    row = {
        "entity": [{"entity_type": "user", "entity_name": stock.name("nobody")}],
        "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
    }
    return {"entries": [row], "validate_only": True}


def _delete_user(stock: Stock) -> Fields:
    return {"deletions": [{"name": stock.name("nobody"), "mechanism": 1}], "upsertions": []}


def _settings(key: str, kind: int, name: str, value: Any) -> Any:
    def fields(stock: Stock) -> Fields:
        row = {"resource_type": kind, "resource_name": name, key: value}
        return {"resources": [row], "validate_only": True}

    return fields


def _elect(stock: Stock) -> Fields:
    rows = [{"topic": stock.name(name), "partitions": [0]} for name in ("orders", "none")]
    return {"election_type": 0, "topic_partitions": rows, "timeout": 10000}


def _reassign(stock: Stock) -> Fields:
    """Cancel reassignments that do not exist."""
    rows = [{"partition_index": 0, "replicas": None}]
    topics = [{"name": stock.name(name), "partitions": rows} for name in ("orders", "none")]
    return {"timeout": 10000, "topics": topics}


def _reassignments(stock: Stock) -> Fields:
    rows = [{"name": stock.name("orders"), "partition_indexes": [0]}]
    return {"timeout": 10000, "topics": rows}


def _log_dirs(stock: Stock) -> Fields:
    return {"topics": [{"topic": stock.name("orders"), "partitions": [0]}]}


def _quorum(stock: Stock) -> Fields:
    partitions = [{"partition_index": 0}]
    return {"topics": [{"topic_name": "__cluster_metadata", "partitions": partitions}]}


def _features(stock: Stock) -> Fields:
    row = {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}
    return {"timeout": 10000, "feature_updates": [row], "validate_only": True}


def _voter(stock: Stock) -> Fields:
    """A voter of another cluster."""
    return {
        "cluster_id": "another-cluster",
        "timeout": 10000,
        "voter_id": NO_BROKER,
        "voter_directory_id": UNKNOWN_ID,
        "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 9}],
    }


def _operations(stock: Stock) -> Fields:
    return {"include_cluster_authorized_operations": True, "endpoint_type": 1}


def _row_codes(response: Any) -> Any:
    """Only the error codes of resources: each server has loggers of its own."""
    rows = response["results"] if "results" in response else response["responses"]
    return [row["error_code"] for row in rows]


BROKER_SETTING = {"name": "log.cleaner.backoff.ms", "value": "14000", "config_operation": 0}
LEVEL_SETTING = {"name": "root", "value": "WARN", "config_operation": 0}
METRICS_SETTING = {"name": "interval.ms", "value": "1000", "config_operation": 0}


def _alter() -> list[GuardedCall]:
    right = (on_cluster(Op.ALTER),)
    return [
        GuardedCall(api="create_acls", rights=right, fields=_rule),
        GuardedCall(
            api="delete_acls", rights=right, fields=lambda stock: {"filters": [_rules(stock)]}
        ),
        GuardedCall(api="alter_user_scram_credentials", rights=right, fields=_delete_user),
        GuardedCall(api="elect_leaders", rights=right, fields=_elect),
        GuardedCall(api="alter_partition_reassignments", rights=right, fields=_reassign),
        GuardedCall(api="update_features", rights=right, fields=_features),
        GuardedCall(
            api="unregister_broker", rights=right, fields=lambda stock: {"broker_id": NO_BROKER}
        ),
        GuardedCall(api="add_raft_voter", rights=right, fields=_voter),
        GuardedCall(api="remove_raft_voter", rights=right, fields=_voter),
    ]


def _describe() -> list[GuardedCall]:
    right = (on_cluster(Op.DESCRIBE),)
    return [
        GuardedCall(api="describe_acls", rights=right, fields=_rules),
        GuardedCall(
            api="describe_user_scram_credentials",
            rights=right,
            fields=lambda stock: {"users": [{"name": stock.name("nobody")}]},
        ),
        GuardedCall(api="list_partition_reassignments", rights=right, fields=_reassignments),
        GuardedCall(api="describe_log_dirs", rights=right, fields=_log_dirs),
        GuardedCall(api="describe_quorum", rights=right, fields=_quorum, only=_codes),
        GuardedCall(api="describe_cluster", rights=right, fields=_operations, only=without_brokers),
    ]


LEVEL_CHANGE = GuardedCall(
    api="incremental_alter_configs",
    label="of loggers",
    rights=(on_cluster(Op.ALTER_CONFIGS),),
    fields=_settings("configs", CONFIG_LOGGER, "1", [LEVEL_SETTING]),
    only=_row_codes,
)


def _configs() -> list[GuardedCall]:
    see, change = (on_cluster(Op.DESCRIBE_CONFIGS),), (on_cluster(Op.ALTER_CONFIGS),)
    keys = "configuration_keys"
    rows = {
        "of a broker": (CONFIG_BROKER, "1", BROKER_SETTING),
        "of all brokers": (CONFIG_BROKER, "", BROKER_SETTING),
        "of client metrics": (CONFIG_METRICS, NOBODY_NAME, METRICS_SETTING),
    }
    return [
        GuardedCall(api="describe_client_quotas", rights=see, fields=_quotas),
        GuardedCall(
            api="list_config_resources",
            rights=see,
            fields=lambda stock: {"resource_types": [CONFIG_METRICS]},
        ),
        *(
            GuardedCall(
                api="describe_configs",
                label=label,
                rights=see,
                fields=_settings(keys, kind, name, [setting["name"]]),
            )
            for label, (kind, name, setting) in rows.items()
        ),
        GuardedCall(
            api="describe_configs",
            label="of loggers",
            rights=see,
            fields=_settings(keys, CONFIG_LOGGER, "1", None),
            only=_row_codes,
        ),
        GuardedCall(api="alter_client_quotas", rights=change, fields=_alter_quotas),
        *(
            GuardedCall(
                api=api,
                label=label,
                rights=change,
                fields=_settings("configs", kind, name, [setting]),
            )
            for api in ("alter_configs", "incremental_alter_configs")
            for label, (kind, name, setting) in rows.items()
        ),
        LEVEL_CHANGE,
    ]


CALLS = [*_alter(), *_describe(), *_configs()]

_SERVED_BY_CONTROLLERS = (
    *("create_acls", "delete_acls", "describe_acls", "alter_user_scram_credentials"),
    *("elect_leaders", "alter_partition_reassignments", "list_partition_reassignments"),
    *("update_features", "unregister_broker", "add_raft_voter", "remove_raft_voter"),
    *("describe_quorum", "alter_client_quotas"),
)
CONTROLLER_CALLS = [
    *(call for call in CALLS if call.api in _SERVED_BY_CONTROLLERS),
    GuardedCall(
        api="describe_cluster",
        rights=(on_cluster(Op.ALTER),),
        fields=lambda stock: {"endpoint_type": 2},
        only=without_brokers,
        since=1,
    ),
]
"""Calls that controllers serve too."""


def cluster(script: Script) -> None:
    stock = Stock(script)
    stock.make_topics("orders")
    try_all(stock, CALLS)
