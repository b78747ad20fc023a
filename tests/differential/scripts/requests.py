"""Requests that many scripts send, with the fields of all versions."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.differential.script import Script

DEFAULT_CONFIG = 5
NO_ID = "00000000-0000-0000-0000-000000000000"


def produce(
    script: Script,
    label: str,
    topic: tuple[str, str],
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
    version: int | None = None,
) -> Any:
    fields = produce_fields([(topic, [(partition, records)])], acks, transactional_id)
    return script.request(label, "produce", fields, version=version)


def produce_fields(
    topics: Sequence[tuple[tuple[str, str], Sequence[tuple[int, bytes | None]]]],
    acks: int = -1,
    transactional_id: str | None = None,
) -> dict[str, Any]:
    return {
        "acks": acks,
        "timeout": 5000,
        "transactional_id": transactional_id,
        "topic_data": [
            {
                "name": name,
                "topic_id": topic_id,
                "partition_data": [
                    {"index": index, "records": records} for index, records in partitions
                ],
            }
            for (name, topic_id), partitions in topics
        ],
    }


def fetch_fields(
    topics: list[tuple[tuple[str, str], list[dict[str, Any]]]],
    *,
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: list[tuple[tuple[str, str], list[int]]] | None = None,
    replica_id: int = -1,
) -> dict[str, Any]:
    """Partitions are dicts with `partition`, `fetch_offset` and other fields."""
    return {
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "replica_id": replica_id,
        "replica_state": {"replica_id": replica_id, "replica_epoch": -1},
        "topics": [
            {
                "topic": name,
                "topic_id": topic_id,
                "partitions": [{"partition_max_bytes": 1 << 20, **row} for row in partitions],
            }
            for (name, topic_id), partitions in topics
        ],
        "forgotten_topics_data": [
            {"topic": name, "topic_id": topic_id, "partitions": partitions}
            for (name, topic_id), partitions in forgotten or []
        ],
    }


def fetch(
    script: Script,
    label: str,
    topic: tuple[str, str],
    offset: int,
    *,
    partition: int = 0,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    row = {"partition": partition, "fetch_offset": offset, **(more or {})}
    return script.request(label, "fetch", fetch_fields([(topic, [row])], **options))


def list_offsets(
    script: Script,
    label: str,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    replica_id: int = -1,
    version: int | None = None,
) -> Any:
    row = {"partition_index": partition, "timestamp": timestamp}
    row["current_leader_epoch"] = current_leader_epoch
    fields = {
        "replica_id": replica_id,
        "isolation_level": isolation_level,
        "topics": [{"name": topic, "partitions": [row]}],
        "timeout": 5000,
    }
    return script.request(label, "list_offsets", fields, version=version)


def create_topic(
    script: Script,
    label: str,
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int = 1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
    validate_only: bool = False,
) -> Any:
    topic = new_topic(
        name,
        partitions=partitions,
        replication_factor=replication_factor,
        assignments=assignments,
        configs=configs,
    )
    fields = {"topics": [topic], "timeout": 10000, "validate_only": validate_only}
    return script.request(label, "create_topics", fields, only=without_defaults)


def without_defaults(response: Any) -> Any:
    """Remove settings with default values, which other scripts cover."""
    for topic in response["topics"]:
        if topic.get("configs"):
            rows = topic["configs"]
            topic["configs"] = [row for row in rows if row["config_source"] != DEFAULT_CONFIG]
    return response


def new_topic(
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int = 1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": brokers}
            for index, brokers in (assignments or {}).items()
        ],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }


def delete_topics(
    script: Script, label: str, names: list[str | None], ids: list[str] | None = None
) -> Any:
    """Delete topics by name, and by id where the version has ids."""
    by_name = [{"name": name, "topic_id": None} for name in names]
    by_id = [{"name": None, "topic_id": topic_id} for topic_id in ids or []]
    fields = {"topic_names": names, "topics": by_name + by_id, "timeout": 10000}
    return script.request(label, "delete_topics", fields)


def metadata_fields(
    names: list[str | None] | None,
    *,
    ids: list[str] | None = None,
    auto_create: bool = False,
    operations: bool = False,
) -> dict[str, Any]:
    topics: list[dict[str, Any]] | None = None
    if names is not None:
        topics = [{"name": name, "topic_id": None} for name in names]
        topics += [{"name": None, "topic_id": topic_id} for topic_id in ids or []]
    return {
        "topics": topics,
        "allow_auto_topic_creation": auto_create,
        "include_cluster_authorized_operations": operations,
        "include_topic_authorized_operations": operations,
    }


def commit_fields(
    group: str,
    rows: Sequence[tuple[tuple[str, str], int, int, str | None]],
    *,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
) -> dict[str, Any]:
    """Rows are (topic, partition, offset, metadata)."""
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": instance,
        "topics": [
            {
                "name": name,
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_metadata": metadata,
                    }
                ],
            }
            for (name, topic_id), partition, offset, metadata in rows
        ],
    }


def commit(
    script: Script,
    label: str,
    group: str,
    rows: Sequence[tuple[tuple[str, str], int, int, str | None]],
    **who: Any,
) -> Any:
    return script.request(label, "offset_commit", commit_fields(group, rows, **who))


def offset_fetch_fields(
    groups: list[tuple[str, list[tuple[tuple[str, str], list[int]]] | None]],
    *,
    require_stable: bool = False,
    member: str | None = None,
    epoch: int = -1,
) -> dict[str, Any]:
    def rows(topics: list[tuple[tuple[str, str], list[int]]] | None) -> Any:
        if topics is None:
            return None
        return [
            {"name": name, "topic_id": topic_id, "partition_indexes": partitions}
            for (name, topic_id), partitions in topics
        ]

    first = groups[0]
    return {
        "group_id": first[0],
        "topics": rows(first[1]),
        "groups": [
            {"group_id": group, "topics": rows(topics), "member_id": member, "member_epoch": epoch}
            for group, topics in groups
        ],
        "require_stable": require_stable,
    }


def offset_fetch(
    script: Script,
    label: str,
    group: str,
    topics: list[tuple[tuple[str, str], list[int]]] | None,
    **options: Any,
) -> Any:
    fields = offset_fetch_fields([(group, topics)], **options)
    return script.request(label, "offset_fetch", fields, only=sorted_offsets)


def sorted_offsets(response: Any) -> Any:
    """Sort the offsets of a group, which come in the order of a hash table."""
    for owner in [response, *response.get("groups", [])]:
        if isinstance(owner.get("topics"), list):
            owner["topics"].sort(key=lambda row: row.get("name") or row.get("topic_id") or "")
            for topic in owner["topics"]:
                topic["partitions"].sort(key=lambda row: row["partition_index"])
    return response
