"""``riverrun topics describe``: gathered from the cluster, then laid out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from riverrun.admin.cluster.configs import Source, source_in_words
from riverrun.admin.cluster.replica_lag import (
    SHOWN_MAX,
    Copies,
    FollowerLag,
    ask_copies,
    in_short,
    place_of,
)
from riverrun.admin.requests import check, find_topic
from riverrun.admin.tables import Bad, ByteCount, Table, bytes_in_words, counted
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from riverrun.wire.messages.metadata_response import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_RESOURCE = 2
NO_LEADER = -1
LEADER_SECONDS_MAX = 3.0
LOOK_EVERY_SECONDS = 0.25
"""When a leader does not respond, another is elected shortly, if there is a majority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    index: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    start_offset: int | None
    end_offset: int | None
    size_bytes: int | None
    is_answered: bool
    """Reported by a leader."""
    followers: tuple[FollowerLag, ...]

    @property
    def is_healthy(self) -> bool:
        return self.is_answered and len(self.isr) == len(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    name: str
    id: UUID | None
    is_internal: bool
    partitions: tuple[PartitionRow, ...]
    settings: tuple[SettingRow, ...]

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def size_bytes(self) -> int:
        """Sum over all leaders."""
        return sum(partition.size_bytes or 0 for partition in self.partitions)

    @property
    def record_count_max(self) -> int:
        """Compaction and transactions leave gaps, so there may be fewer."""
        return sum((p.end_offset or 0) - (p.start_offset or 0) for p in self.partitions)

    @property
    def is_compacted(self) -> bool:
        return any(
            row.name == "cleanup.policy" and "compact" in (row.value or "") for row in self.settings
        )

    def described(self) -> dict[str, object]:
        partitions = [
            {
                "partition": p.index, "leader": p.leader, "leader_epoch": p.leader_epoch,
                "replicas": p.replicas, "isr": p.isr, "offline": p.offline,
                "start_offset": p.start_offset, "end_offset": p.end_offset,
                "size_bytes": p.size_bytes, "leader_answers": p.is_answered,
                "followers": [follower.described() for follower in p.followers],
            }
            for p in self.partitions
        ]  # fmt: skip
        return {
            "name": self.name,
            "id": None if self.id is None else str(self.id),
            "internal": self.is_internal,
            "replication_factor": self.replication_factor,
            "partitions": partitions,
            "settings": [
                {"name": row.name, "value": row.value, "source": row.source}
                for row in self.settings
            ],
        }


async def describe_topics(
    pool: ConnectionPool, wanted: Sequence[str] | None, *, all_settings: bool, internal: bool
) -> list[TopicRow]:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + LEADER_SECONDS_MAX
    while True:
        rows = await _look(pool, wanted, internal=internal)
        copies = await ask_copies(pool, rows, with_sizes=True)
        # Silent followers are shown as such at once, because they are not replaced.
        if not copies.silent & _leaders(rows) or loop.time() > give_up_at:
            break
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    unknown = {NO_LEADER, *copies.silent}
    places = [
        place_of(topic, partition)
        for topic in rows
        for partition in topic.partitions
        if partition.leader_id not in unknown
    ]
    starts = await offsets_at(pool, dict.fromkeys(places, EARLIEST))
    ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
    names = [topic.name or "" for topic in rows]
    settings = await _settings(pool, names, all_settings=all_settings)
    return [
        TopicRow(
            name=topic.name or "",
            id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=tuple(
                _partition(row, place_of(topic, row), starts, ends, copies)
                for row in sorted(topic.partitions, key=lambda row: row.partition_index)
            ),
            settings=tuple(settings[topic.name or ""]),
        )
        for topic in rows
    ]


async def _look(
    pool: ConnectionPool, wanted: Sequence[str] | None, *, internal: bool
) -> list[MetadataResponseTopic]:
    if wanted is not None:
        names = dict.fromkeys(wanted)
        return [await find_topic(pool, name, may_be_created=False) for name in names]
    topics = (await pool.metadata(None)).topics
    shown = [topic for topic in topics if internal or not topic.is_internal]
    return sorted(shown, key=lambda topic: topic.name or "")


def _leaders(topics: Iterable[MetadataResponseTopic]) -> set[int]:
    leaders = {row.leader_id for topic in topics for row in topic.partitions}
    return leaders - {NO_LEADER}


def _partition(
    row: MetadataResponsePartition,
    place: TopicPartition,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    copies: Copies,
) -> PartitionRow:
    return PartitionRow(
        index=row.partition_index,
        leader=None if row.leader_id == NO_LEADER else row.leader_id,
        leader_epoch=row.leader_epoch,
        replicas=row.replica_nodes,
        isr=row.isr_nodes,
        offline=row.offline_replicas,
        start_offset=starts.get(place),
        end_offset=ends.get(place),
        size_bytes=copies.sizes.get((row.leader_id, place)),
        is_answered=place in ends,
        followers=copies.followers(place, row.leader_id, row.replica_nodes),
    )


async def _settings(
    pool: ConnectionPool, names: Sequence[str], *, all_settings: bool
) -> dict[str, list[SettingRow]]:
    if not names:
        return {}
    message = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
            )
            for name in names
        ),
        include_synonyms=True,
    )
    answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, message)
    settings: dict[str, list[SettingRow]] = {}
    for result in answer.results:
        check(result.error_code, result.error_message, f"topic {result.resource_name}")
        settings[result.resource_name] = [
            SettingRow(
                name=row.name,
                value=row.value,
                source=source_in_words(row.config_source),
            )
            for row in sorted(result.configs, key=lambda row: row.name)
            if all_settings or _differs(row)
        ]
    return settings


def _differs(row: DescribeConfigsResourceResult) -> bool:
    """A node may set a value that equals the default."""
    if row.config_source in (Source.TOPIC, Source.DEFAULT):
        return row.config_source == Source.TOPIC
    return all(
        synonym.value != row.value for synonym in row.synonyms if synonym.source == Source.DEFAULT
    )


def tables_of(topic: TopicRow, *, is_terminal: bool, is_wide: bool = False) -> list[Table]:
    """A title and the interesting rows for people; every row with the topic's name for programs."""
    head = Table(
        kind="topic",
        columns=("topic", "partitions", "replicas", "records", "size", "id"),
        wide=("id",),
        rows=[
            (
                topic.name,
                len(topic.partitions),
                topic.replication_factor,
                topic.record_count_max,
                ByteCount(topic.size_bytes),
                str(topic.id or "-"),
            )
        ],
    )
    partitions = Table(
        kind="partition",
        columns=(
            "topic", "partition", "leader", "replicas", "in sync", "start", "end", "size", "lag",
        ),
        rows=[
            (
                topic.name, p.index, Bad("none") if p.leader is None else str(p.leader),
                _joined(p.replicas),
                _joined(p.isr) if len(p.isr) == len(p.replicas) else Bad(_joined(p.isr)),
                p.start_offset, p.end_offset,
                None if p.size_bytes is None else ByteCount(p.size_bytes),
                in_short(p.followers, shown_max=SHOWN_MAX if is_terminal else None),
            )
            for p in topic.partitions
        ],
    )  # fmt: skip
    settings = Table(
        kind="setting",
        columns=("topic", "setting", "value", "set by"),
        rows=[(topic.name, row.name, row.value, row.source) for row in topic.settings],
    )
    if not is_terminal:
        return [head, partitions, settings]
    up_to = "up to " if topic.is_compacted else ""
    title = (
        f"{topic.name}  {counted(len(topic.partitions), 'partition')}, replication factor "
        f"{topic.replication_factor}, {up_to}{counted(topic.record_count_max, 'record')}, "
        f"{bytes_in_words(topic.size_bytes)}" + (f", id {topic.id}" if is_wide else "")
    )
    unhealthy = sum(not partition.is_healthy for partition in topic.partitions)
    if unhealthy:
        title += f", {counted(unhealthy, 'partition')} not fully in sync"
    unknown = sum(not partition.is_answered for partition in topic.partitions)
    if unknown:
        title += f", {counted(unknown, 'partition')} without a responding leader"
    title += _behind(topic)
    return [_without_topic(partitions, title), _without_topic(settings, None)]


def _behind(topic: TopicRow) -> str:
    """The follower with the largest lag, if any lags."""
    late = [one for p in topic.partitions for one in p.followers if one.lag]
    if not late:
        return ""
    worst = max(late, key=lambda one: one.lag or 0)
    size = "" if worst.lag_bytes is None else f" ({bytes_in_words(worst.lag_bytes)})"
    return f", node {worst.node} lacks up to {counted(worst.lag or 0, 'record')}{size}"


def _without_topic(table: Table, title: str | None) -> Table:
    """Drop the name, which is in the title."""
    return Table(columns=table.columns[1:], rows=[row[1:] for row in table.rows], title=title)


def _joined(nodes: Sequence[int]) -> str:
    return ",".join(str(node) for node in nodes)
