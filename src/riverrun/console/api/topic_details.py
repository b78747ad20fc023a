"""Parts of a topic: partitions with their replicas, settings, groups and producers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from riverrun.admin.cluster.configs import Source
from riverrun.admin.cluster.replica_lag import Copies, ask_copies
from riverrun.admin.requests import find_topic
from riverrun.admin.topics.admin import ask_topic_settings
from riverrun.admin.topics.positions import Positions, ask_positions
from riverrun.admin.topics.producers import ask_producers
from riverrun.console.api.groups import summaries
from riverrun.console.cluster_facts import Moves, SharedFacts, is_behind, place_in
from riverrun.console.configs import ConfigList, items_of
from riverrun.console.listing import ItemPage, ListQuery, page_of
from riverrun.console.routing import ApiEndpoint, ClusterRequest
from riverrun.wire.messages.metadata_response import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TAG: Final = "topics"


class ReplicaItem(Struct, kw_only=True):
    """A replica of a partition. Values are null while its node does not respond."""

    node: int
    in_sync: bool
    is_leader: bool
    is_added: bool
    """It is copied by a move."""
    lag_records: int | None
    """Records of the leader that it lacks."""
    lag_seconds: float | None
    size: int | None


class PartitionItem(Struct, kw_only=True):
    """A partition with its replicas."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[ReplicaItem]
    start_offset: int | None
    end_offset: int | None
    size: int | None
    under_replicated: bool
    offline: bool
    moving: bool


class TopicGroup(Struct, kw_only=True):
    """A group that reads a topic."""

    group: str
    state: str
    lag: int | None
    """In this topic; null if a leader does not respond."""
    lag_seconds: float | None


class TopicGroups(Struct, kw_only=True):
    items: list[TopicGroup]


class ProducerItem(Struct, kw_only=True):
    """An idempotent producer. Other producers have no id, so they are not listed."""

    partition: int
    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start: int | None
    """The first offset of its open transaction."""


class TopicProducers(Struct, kw_only=True):
    items: list[ProducerItem]


async def list_partitions(request: ClusterRequest) -> ItemPage[PartitionItem]:
    query: ListQuery = request.query
    topic = await find_topic(request.pool, request.params["topic"], may_be_created=False)
    rows = sorted(topic.partitions, key=lambda row: row.partition_index)
    if query.order == "desc":
        rows.reverse()
    page = page_of(rows, query)
    shown = replace(topic, partitions=tuple(page.items))
    positions = await ask_positions(request.pool, [shown])
    copies = await ask_copies(request.pool, [shown], with_sizes=False)
    moves = await SharedFacts(request.connected).moves()
    return ItemPage(
        items=[_partition(topic, row, positions, copies, moves) for row in page.items],
        total=page.total,
        page=page.page,
        limit=page.limit,
    )


def _partition(
    topic: MetadataResponseTopic,
    row: MetadataResponsePartition,
    positions: Positions,
    copies: Copies,
    moves: Moves,
) -> PartitionItem:
    at = place_in(topic, row)
    move = moves.get(at)
    added = () if move is None else move.adding
    lags = {one.node: one.lag for one in copies.followers(at, row.leader_id, row.replica_nodes)}

    def replica(node: int) -> ReplicaItem:
        is_leader = node == row.leader_id
        lag = 0 if is_leader else lags.get(node)
        return ReplicaItem(
            node=node,
            in_sync=node in row.isr_nodes,
            is_leader=is_leader,
            is_added=node in added,
            lag_records=lag,
            lag_seconds=0.0 if lag == 0 else None,
            size=positions.replica_sizes.get((node, at)),
        )

    return PartitionItem(
        partition=row.partition_index,
        leader=row.leader_id if row.leader_id >= 0 else None,
        leader_epoch=row.leader_epoch,
        replicas=[replica(node) for node in row.replica_nodes],
        start_offset=positions.starts.get(at),
        end_offset=positions.ends.get(at),
        size=positions.replica_sizes.get((row.leader_id, at)),
        under_replicated=is_behind(row, move),
        offline=row.leader_id < 0,
        moving=move is not None,
    )


async def get_configs(request: ClusterRequest) -> ConfigList:
    topic = await find_topic(request.pool, request.params["topic"], may_be_created=False)
    return items_of(await ask_topic_settings(request.pool, topic.name or ""), Source.TOPIC)


async def list_groups(request: ClusterRequest) -> TopicGroups:
    """Groups that have committed an offset of the topic, or whose members read it."""
    topic = await find_topic(request.pool, request.params["topic"], may_be_created=False)
    positions = await ask_positions(request.pool, [topic])
    found = []
    for one in await summaries(request):
        if topic.name not in one.topics:
            continue
        committed = {at: offset for at, offset in one.committed.items() if at.topic == topic.name}
        known = [
            max(0, positions.ends[at] - offset)
            for at, offset in committed.items()
            if at in positions.ends
        ]
        lag = sum(known) if known else None
        found.append(
            TopicGroup(
                group=one.row.group,
                state=one.row.state,
                lag=lag,
                lag_seconds=0.0 if lag == 0 else None,
            )
        )
    return TopicGroups(items=sorted(found, key=lambda row: row.group))


async def list_producers(request: ClusterRequest) -> TopicProducers:
    topic = await find_topic(request.pool, request.params["topic"], may_be_created=False)
    return TopicProducers(
        items=[
            ProducerItem(
                partition=row.partition,
                producer_id=row.producer_id,
                epoch=row.epoch,
                last_sequence=row.last_sequence,
                last_timestamp_ms=row.last_timestamp_ms,
                transaction_start=row.transaction_start,
            )
            for row in await ask_producers(request.pool, topic)
        ]
    )


ENDPOINTS: Final = (
    ApiEndpoint(
        "GET",
        "topics/{topic}/partitions",
        list_partitions,
        "The partitions of a topic, by number",
        query=ListQuery,
        response=ItemPage[PartitionItem],
        tag=TAG,
    ),
    ApiEndpoint(
        "GET",
        "topics/{topic}/configs",
        get_configs,
        "The settings of a topic",
        response=ConfigList,
        tag=TAG,
    ),
    ApiEndpoint(
        "GET",
        "topics/{topic}/groups",
        list_groups,
        "The groups that read a topic",
        response=TopicGroups,
        tag=TAG,
    ),
    ApiEndpoint(
        "GET",
        "topics/{topic}/producers",
        list_producers,
        "The idempotent producers of a topic",
        response=TopicProducers,
        tag=TAG,
    ),
)
