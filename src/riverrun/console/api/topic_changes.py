"""Changes to a topic: partitions, replicas, settings, and deletion of old records."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from riverrun.admin.balance.cluster_state import ask_state
from riverrun.admin.balance.stored_plans import start_plan, supports_plans
from riverrun.admin.balance.topic_plans import resize_plan
from riverrun.admin.groups.admin import Target
from riverrun.admin.requests import find_topic
from riverrun.admin.topics.admin import alter_topic, ask_topic_settings
from riverrun.admin.topics.placement_preview import PlacementPreview, preview_partitions
from riverrun.admin.topics.trim import PartitionTrim, delete_records, plan_trim
from riverrun.client.partitions import LATEST
from riverrun.console.configs import ConfigBody, ConfigChange, differences
from riverrun.console.problems import problem
from riverrun.console.routing import INT32_MAX, INT64_MAX, ApiEndpoint, ChangeResult, ClusterRequest

TAG: Final = "topics"


class NewPartition(Struct, kw_only=True):
    """The nodes of a partition, the preferred leader first."""

    partition: int
    replicas: list[int]


class TopicPlacement(ChangeResult, kw_only=True):
    """Where replicas are. In a dry run, the controller may choose others among equal nodes."""

    placement: list[NewPartition]


class ReplicationChange(TopicPlacement, kw_only=True):
    """``plan`` is the id of the plan that copies the replicas; ``GET moves`` shows its progress."""

    plan: str | None
    bytes: int
    """To be copied."""


class PartitionsBody(Struct, kw_only=True):
    """``count`` is the new number of partitions."""

    count: Annotated[int, Meta(ge=1, le=INT32_MAX)]
    dry_run: bool = False


class ReplicasBody(Struct, kw_only=True):
    """``throttle`` limits what each node sends and receives, in bytes per second."""

    replication_factor: Annotated[int, Meta(ge=1, le=32767)]
    throttle: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    dry_run: bool = False


class TrimBody(Struct, kw_only=True):
    """Delete the records before an offset of some partitions, or all records."""

    before: dict[int, int] | Literal["all"]
    dry_run: bool = False


class TrimmedPartition(Struct, kw_only=True):
    partition: int
    old_start: int
    start: int
    end: int
    records: int


class TrimResult(ChangeResult, kw_only=True):
    """The records that are deleted."""

    records: int
    partitions: list[TrimmedPartition]


def placement_of(preview: PlacementPreview, first: int = 0) -> list[NewPartition]:
    return [
        NewPartition(partition=first + index, replicas=[int(one.broker) for one in row])
        for index, row in enumerate(preview.explanation.partitions)
    ]


async def add_partitions(request: ClusterRequest) -> TopicPlacement:
    """Partitions cannot be removed, and keys of new records may map to other partitions."""
    body: PartitionsBody = request.body
    name = request.params["topic"]
    before = await find_topic(request.pool, name, may_be_created=False)
    old = len(before.partitions)
    await alter_topic(
        request.pool, name, partitions=body.count, settings={}, validate_only=body.dry_run
    )
    if body.dry_run:
        factor = max((len(row.replica_nodes) for row in before.partitions), default=1)
        preview = await preview_partitions(
            request.pool, name, partitions=body.count - old, replication_factor=factor
        )
        placement = placement_of(preview, old)
    else:
        after = await find_topic(request.pool, name, may_be_created=False)
        placement = [
            NewPartition(partition=row.partition_index, replicas=list(row.replica_nodes))
            for row in sorted(after.partitions, key=lambda row: row.partition_index)
            if row.partition_index >= old
        ]
    return TopicPlacement(
        dry_run=body.dry_run,
        command=request.cluster.command("topics", "alter", name, "--partitions", str(body.count)),
        placement=placement,
    )


async def change_replicas(request: ClusterRequest) -> ReplicationChange:
    """The controller copies replicas in the background."""
    body: ReplicasBody = request.body
    name = request.params["topic"]
    if not await supports_plans(request.pool):
        raise problem(
            "not_supported",
            "This cluster does not run plans of moves; only riverrun does.",
            "Use kafka-reassign-partitions.",
        )
    plan = resize_plan(await ask_state(request.pool), name, body.replication_factor)
    words = ["topics", "alter", name, "--replicas", str(body.replication_factor)]
    plan_id = None
    if plan.moves and not body.dry_run:
        plan_id = await start_plan(
            request.pool,
            " ".join(words),
            plan.moves,
            throttle=body.throttle,
            requester=f"{request.user or 'anonymous'} by the console",
        )
    if body.throttle is not None:
        words += ["--throttle", str(body.throttle)]
    return ReplicationChange(
        dry_run=body.dry_run,
        command=request.cluster.command(*words),
        placement=[
            NewPartition(partition=move.partition, replicas=[int(node) for node in move.after])
            for move in plan.moves
        ],
        plan=plan_id,
        bytes=int(plan.bytes_to_copy),
    )


async def change_configs(request: ClusterRequest) -> ConfigChange:
    body: ConfigBody = request.body
    name = request.params["topic"]
    changed = body.values()
    await find_topic(request.pool, name, may_be_created=False)
    rows = await ask_topic_settings(request.pool, name)
    await alter_topic(
        request.pool,
        name,
        partitions=None,
        settings=changed,
        validate_only=body.dry_run,
        setting_names=lambda: [row.name for row in rows],
    )
    words = ["topics", "alter", name]
    for key, value in body.set.items():
        words += ["--config", f"{key}={value}"]
    for key in body.reset:
        words += ["--delete-config", key]
    return ConfigChange(
        dry_run=body.dry_run,
        command=request.cluster.command(*words),
        changes=differences(rows, body),
    )


async def trim_topic(request: ClusterRequest) -> TrimResult:
    """Delete the oldest records. The topic and its offsets stay."""
    body: TrimBody = request.body
    name = request.params["topic"]
    trims: list[PartitionTrim] = []
    commands: list[tuple[str, str]] = []
    if body.before == "all":
        trims = await plan_trim(request.pool, {name: None}, Target(time=LATEST))
        commands.append((name, "end"))
    else:
        for partition, offset in sorted(body.before.items()):
            wanted = {name: frozenset([partition])}
            (trim,) = await plan_trim(request.pool, wanted, Target(offset=offset))
            if offset > trim.end:
                raise problem(
                    "invalid",
                    f"Offset {offset} is beyond the end of partition {partition}, which is "
                    f"{trim.end}.",
                    'Send "all" to delete all records.',
                )
            trims.append(trim)
            commands.append((f"{name}:{partition}", str(offset)))
    if not body.dry_run:
        trims = await delete_records(request.pool, trims)
        for trim in trims:
            if trim.failure is not None:
                raise problem("conflict", f"{trim.partition}: {trim.failure}.")
    return TrimResult(
        dry_run=body.dry_run,
        command=" && ".join(
            request.cluster.command("topics", "trim", place, "--before", before, "--yes")
            for place, before in commands
        ),
        records=sum(trim.records for trim in trims),
        partitions=[
            TrimmedPartition(
                partition=trim.partition.partition,
                old_start=trim.start,
                start=trim.before,
                end=trim.end,
                records=trim.records,
            )
            for trim in trims
        ],
    )


ENDPOINTS: Final = (
    ApiEndpoint(
        "POST",
        "topics/{topic}/partitions",
        add_partitions,
        "Add partitions",
        body=PartitionsBody,
        response=TopicPlacement,
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "topics/{topic}/replicas",
        change_replicas,
        "Change the number of replicas",
        body=ReplicasBody,
        response=ReplicationChange,
        tag=TAG,
    ),
    ApiEndpoint(
        "PATCH",
        "topics/{topic}/configs",
        change_configs,
        "Change settings of a topic",
        body=ConfigBody,
        response=ConfigChange,
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "topics/{topic}/trim",
        trim_topic,
        "Delete the oldest records of a topic",
        body=TrimBody,
        response=TrimResult,
        tag=TAG,
    ),
)
