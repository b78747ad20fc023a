"""Topics: the list, one topic, creation and deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from riverrun.admin.requests import find_topic
from riverrun.admin.topics.admin import ask_setting, create_topics, delete_topics
from riverrun.admin.topics.placement_preview import preview_topics
from riverrun.console.api import topic_changes, topic_details
from riverrun.console.api.groups import raise_first
from riverrun.console.api.topic_changes import NewPartition, TopicPlacement, placement_of
from riverrun.console.cluster_facts import SharedFacts, TopicState, is_internal, partition_facts
from riverrun.console.listing import ItemPage, Key, ListQuery, matching, ordered, page_of
from riverrun.console.routing import INT32_MAX, ApiEndpoint, ChangeResult, ClusterRequest
from riverrun.console.topic_measures import TopicMeasure, TopicMeasures, ask_policies

TAG: Final = "topics"
DEFAULT_OF_CLUSTER: Final = -1
MEASURED_SORTS: Final = ("records", "size", "messages_in")
"""Orders for which all topics must be measured."""
RETENTION: Final = "retention.ms"


class TopicQuery(ListQuery, kw_only=True):
    """``internal``: with the topics of the cluster and its tools."""

    internal: bool = False


class TopicItem(Struct, kw_only=True):
    """A topic. Measures are null if a leader does not respond, or while they are not known."""

    name: str
    internal: bool
    partitions: int
    replication_factor: int
    """Without replicas that a move is adding."""
    records: int | None
    """The difference of end and start offsets. Compaction leaves gaps, so there may be fewer."""
    size: int | None
    """Bytes of the leaders' replicas."""
    messages_in: float | None
    """Records per second."""
    bytes_in: float | None
    """Growth on disk, in bytes per second."""
    under_replicated: int
    """Partitions that are not fully replicated."""
    offline: int
    """Partitions without a leader."""
    moving: int
    """Partitions that are being moved."""
    cleanup_policy: str | None


class TopicSummary(TopicItem, kw_only=True):
    """One topic. Settings are null without the right DescribeConfigs."""

    topic_id: str | None
    retention_ms: int | None


class TopicCreation(Struct, kw_only=True):
    """A topic to create. Without numbers, the defaults of the cluster apply."""

    name: str
    partitions: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=32767)] | None = None
    configs: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False


class TopicDeletionQuery(Struct, kw_only=True):
    dry_run: bool = False


class TopicDeletion(ChangeResult, kw_only=True):
    """What is lost."""

    partitions: int
    records: int | None
    size: int | None


async def list_topics(request: ClusterRequest) -> ItemPage[TopicItem]:
    query: TopicQuery = request.query
    facts = await SharedFacts(request.connected).partitions()
    shown = [topic for topic in facts.topics if query.internal or not is_internal(topic.row)]
    found = matching(shown, query, lambda topic: topic.name)
    measures = TopicMeasures(request.connected)
    known: Mapping[str, TopicMeasure] = {}
    keys: dict[str, Key] = {
        "name": lambda topic: topic.name,
        "partitions": lambda topic: topic.partitions,
        "replication_factor": lambda topic: topic.replication_factor,
        "under_replicated": lambda topic: topic.under_replicated + topic.offline,
    }
    if query.sort in MEASURED_SORTS:
        with_rates = query.sort == "messages_in"
        known = await measures.of_all(facts.topics, with_rates=with_rates)
        keys[query.sort] = lambda topic: getattr(known[topic.name], str(query.sort), None)
    else:
        keys |= dict.fromkeys(MEASURED_SORTS, lambda _: None)  # named in the error
    page = page_of(ordered(found, query, keys, "name"), query)
    if not known:
        known = await measures.of(page.items)
    policies = await ask_policies(request.pool, [topic.name for topic in page.items])
    return ItemPage(
        items=[_item(topic, known[topic.name], policies.get(topic.name)) for topic in page.items],
        total=page.total,
        page=page.page,
        limit=page.limit,
    )


def _item(topic: TopicState, measure: TopicMeasure, policy: str | None) -> TopicItem:
    return TopicItem(
        name=topic.name,
        internal=is_internal(topic.row),
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        records=measure.records,
        size=measure.size,
        messages_in=measure.messages_in,
        bytes_in=measure.bytes_in,
        under_replicated=topic.under_replicated,
        offline=topic.offline,
        moving=topic.moving,
        cleanup_policy=policy,
    )


async def get_topic(request: ClusterRequest) -> TopicSummary:
    name = request.params["topic"]
    topic, measure = await _find(request, name)
    policies = await ask_policies(request.pool, [name])
    retention = (await ask_setting(request.pool, [name], RETENTION)).get(name)
    item = _item(topic, measure, policies.get(name))
    return TopicSummary(
        **{each: getattr(item, each) for each in TopicItem.__struct_fields__},
        topic_id=None if topic.row.topic_id is None else str(topic.row.topic_id),
        retention_ms=None if retention is None else int(retention),
    )


async def _find(request: ClusterRequest, name: str) -> tuple[TopicState, TopicMeasure]:
    row = await find_topic(request.pool, name, may_be_created=False)
    moves = await SharedFacts(request.connected).moves()
    (topic,) = partition_facts([row], moves).topics
    return topic, (await TopicMeasures(request.connected).of([topic]))[name]


async def create_topic(request: ClusterRequest) -> TopicPlacement:
    body: TopicCreation = request.body
    partitions = body.partitions or DEFAULT_OF_CLUSTER
    factor = body.replication_factor or DEFAULT_OF_CLUSTER
    if body.dry_run:
        (preview,) = await preview_topics(
            request.pool,
            [body.name],
            partitions=partitions,
            replication_factor=factor,
            settings=body.configs,
        )
        placement = placement_of(preview)
    else:
        made = await create_topics(
            request.pool,
            [body.name],
            partitions=partitions,
            replication_factor=factor,
            settings=body.configs,
            may_exist=False,
        )
        raise_first(made.errors)
        row = await find_topic(request.pool, body.name)
        placement = [
            NewPartition(partition=one.partition_index, replicas=list(one.replica_nodes))
            for one in sorted(row.partitions, key=lambda one: one.partition_index)
        ]
    words = ["topics", "create", body.name]
    if body.partitions is not None:
        words += ["--partitions", str(body.partitions)]
    if body.replication_factor is not None:
        words += ["--replication-factor", str(body.replication_factor)]
    for key, value in body.configs.items():
        words += ["--config", f"{key}={value}"]
    return TopicPlacement(
        dry_run=body.dry_run, command=request.cluster.command(*words), placement=placement
    )


async def delete_topic(request: ClusterRequest) -> TopicDeletion:
    query: TopicDeletionQuery = request.query
    name = request.params["topic"]
    topic, measure = await _find(request, name)
    if not query.dry_run:
        raise_first((await delete_topics(request.pool, [name])).values())
    return TopicDeletion(
        dry_run=query.dry_run,
        command=request.cluster.command("topics", "delete", name, "--yes"),
        partitions=topic.partitions,
        records=measure.records,
        size=measure.size,
    )


ENDPOINTS: Final[Sequence[ApiEndpoint]] = (
    ApiEndpoint(
        "GET",
        "topics",
        list_topics,
        "All topics; sorts: name, partitions, records, size, messages_in, under_replicated",
        query=TopicQuery,
        response=ItemPage[TopicItem],
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "topics",
        create_topic,
        "Create a topic",
        body=TopicCreation,
        response=TopicPlacement,
        tag=TAG,
    ),
    ApiEndpoint("GET", "topics/{topic}", get_topic, "A topic", response=TopicSummary, tag=TAG),
    ApiEndpoint(
        "DELETE",
        "topics/{topic}",
        delete_topic,
        "Delete a topic with all its records",
        query=TopicDeletionQuery,
        response=TopicDeletion,
        tag=TAG,
    ),
    *topic_details.ENDPOINTS,
    *topic_changes.ENDPOINTS,
)
