"""``riverrun topics create --dry-run``: where the replicas would go, and why.

CreateTopics with validate-only checks the request, but its response has no assignment. So the
preview runs the controller's own placement on what the protocol tells: brokers, replicas and
settings. The controller draws another seed, so among equal brokers it may choose others; the counts
per broker are the same while nothing else changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riverrun.admin.broker_settings import CORDONED, DECOMMISSIONING, MODE, ask_broker_settings
from riverrun.admin.node_facts import ask_traffic, is_riverrun
from riverrun.admin.requests import ask_each, check
from riverrun.admin.tables import ByteCount, Cell, Table, counted
from riverrun.admin.topics.admin import creation_request
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.model.settings import SettingError
from riverrun.placement.brokers import (
    Availability,
    BrokerLoad,
    PlacementBroker,
    PlacementPolicy,
)
from riverrun.placement.explanation import PlacementExplanation, explain
from riverrun.placement.settings import PlacementSettings
from riverrun.placement.traffic import BrokerTraffic
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
from riverrun.wire.messages.describe_cluster_request import DescribeClusterRequest
from riverrun.wire.messages.describe_cluster_response import DescribeClusterResponse
from riverrun.wire.messages.describe_log_dirs_request import DescribeLogDirsRequest
from riverrun.wire.messages.metadata_response import MetadataResponse

SEED = 1
ANSWER_SECONDS_MAX = 2.0
NOTE = "A preview: among equal brokers the controller may choose others."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPreview:
    """The placement of one topic that would be created."""

    name: str
    explanation: PlacementExplanation

    def described(self) -> dict[str, object]:
        told = self.explanation
        return {
            "name": self.name,
            "policy": told.policy.value,
            "partitions": [
                {
                    "partition": index,
                    "replicas": [one.broker for one in row],
                    "reasons": [one.reason for one in row],
                }
                for index, row in enumerate(told.partitions)
            ],
            "brokers": [
                {
                    "id": one.broker, "rack": one.rack, "state": one.availability.value,
                    "replicas_before": one.replicas_before, "replicas_after": one.replicas_after,
                    "leaders_before": one.leaders_before, "leaders_after": one.leaders_after,
                    "bytes_in": one.bytes_in, "bytes_out": one.bytes_out,
                    "note": one.note or None,
                }
                for one in told.brokers
            ],
        }  # fmt: skip


async def preview_topics(
    pool: ConnectionPool,
    names: Sequence[str],
    *,
    partitions: int,
    replication_factor: int,
    settings: Mapping[str, str],
) -> list[PlacementPreview]:
    """Validate the topics as CreateTopics does, then place them one after the other."""
    shapes = await _validated(pool, names, partitions, replication_factor, settings)
    brokers, policy = await _brokers(pool)
    previews: list[PlacementPreview] = []
    for name, (count, factor) in shapes.items():
        told = explain(brokers, partitions=count, replicas=factor, policy=policy, seed=SEED)
        previews.append(PlacementPreview(name=name, explanation=told))
        brokers = [
            PlacementBroker(
                id=one.id, rack=one.rack, availability=one.availability, weight=one.weight,
                load=one.load, replicas=change.replicas_after, leaders=change.leaders_after,
            )
            for one, change in zip(brokers, told.brokers, strict=True)
        ]  # fmt: skip
    return previews


async def preview_partitions(
    pool: ConnectionPool, name: str, *, partitions: int, replication_factor: int
) -> PlacementPreview:
    """Place further partitions of a topic."""
    brokers, policy = await _brokers(pool)
    told = explain(
        brokers, partitions=partitions, replicas=replication_factor, policy=policy, seed=SEED
    )
    return PlacementPreview(name=name, explanation=told)


async def _validated(
    pool: ConnectionPool,
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    settings: Mapping[str, str],
) -> dict[str, tuple[int, int]]:
    """Partitions and replication factor of each topic, with the cluster's defaults."""
    message = creation_request(names, partitions, replication_factor, settings, validate_only=True)
    answer: CreateTopicsResponse = await pool.request(ApiKey.CREATE_TOPICS, message)
    for row in answer.topics:
        check(row.error_code, row.error_message, f"topic {row.name}")
    return {row.name: (row.num_partitions, row.replication_factor) for row in answer.topics}


async def _brokers(pool: ConnectionPool) -> tuple[list[PlacementBroker], PlacementPolicy]:
    """The brokers in order of ids, with their counts of replicas and preferred leaders."""
    cluster: DescribeClusterResponse = await pool.request(
        ApiKey.DESCRIBE_CLUSTER,
        DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        ),
    )
    check(cluster.error_code, cluster.error_message, "the cluster")
    metadata = await pool.metadata(None)
    holds, leads = _counts(metadata)
    live = [row.broker_id for row in cluster.brokers if not row.is_fenced]
    settings, avoided, own = await _settings(pool, live)
    traffic = await ask_traffic(pool, own, has_topics=False)
    loads = await _loads(pool, settings, holds, traffic)
    brokers = [
        PlacementBroker(
            id=NodeId(row.broker_id),
            rack=row.rack,
            availability=avoided.get(row.broker_id)
            or (Availability.FENCED if row.is_fenced else Availability.ACTIVE),
            replicas=holds[row.broker_id],
            leaders=leads[row.broker_id],
            weight=settings.get(row.broker_id, PlacementSettings()).weight,
            load=loads.get(row.broker_id),
        )
        for row in sorted(cluster.brokers, key=lambda row: row.broker_id)
    ]
    policies = [PlacementPolicy(one.policy) for one in settings.values()]
    return brokers, policies[0] if policies else PlacementPolicy.RESOURCE_AWARE


def _counts(metadata: MetadataResponse) -> tuple[Counter[int], Counter[int]]:
    rows = [row for topic in metadata.topics for row in topic.partitions]
    holds = Counter(node for row in rows for node in row.replica_nodes)
    return holds, Counter(row.replica_nodes[0] for row in rows if row.replica_nodes)


async def _settings(
    pool: ConnectionPool, nodes: Sequence[int]
) -> tuple[dict[int, PlacementSettings], dict[int, Availability], list[int]]:
    """The settings of each broker, the brokers that are being decommissioned or cordoned, and those
    of riverrun. Each reports its own settings; those of a silent one count as defaults."""
    wanted = (MODE, CORDONED, *(one.name for one in PlacementSettings.declared()))
    settings = await ask_broker_settings(pool, nodes, wanted)
    found: dict[int, PlacementSettings] = {}
    avoided: dict[int, Availability] = {}
    for node, rows in settings.items():
        texts = {name: row.value for name, row in rows.items() if row.value is not None}
        if texts.get(MODE) == DECOMMISSIONING:
            avoided[node] = Availability.DRAINING
        elif texts.pop(CORDONED, ""):
            avoided[node] = Availability.CORDONED
        try:
            found[node] = PlacementSettings.from_texts(texts)
        except SettingError:
            found[node] = PlacementSettings()
    return found, avoided, [node for node, rows in settings.items() if is_riverrun(rows)]


async def _loads(
    pool: ConnectionPool,
    settings: Mapping[int, PlacementSettings],
    holds: Mapping[int, int],
    traffic: Mapping[int, BrokerTraffic],
) -> dict[int, BrokerLoad]:
    """The load of the brokers that respond, as the controller measures it."""
    messages = {node: DescribeLogDirsRequest(topics=()) for node in settings}
    answers, _ = await ask_each(
        pool, messages, ApiKey.DESCRIBE_LOG_DIRS, limit_s=ANSWER_SECONDS_MAX
    )
    found: dict[int, BrokerLoad] = {}
    for node, answer in answers.items():
        rows = [row for row in answer.results if row.error_code is ErrorCode.NONE]
        if rows and all(row.total_bytes >= 0 and row.usable_bytes >= 0 for row in rows):
            total = sum(row.total_bytes for row in rows)
            rates = traffic.get(node)
            measured = BrokerLoad(
                disk_bytes=total - sum(row.usable_bytes for row in rows),
                disk_capacity=total,
                bytes_in=None if rates is None else rates.bytes_taken,
                bytes_out=None if rates is None else rates.bytes_out,
                replicas=holds[node],
            )
            found[node] = settings[node].with_capacities(measured)
    return found


def tables_of_preview(preview: PlacementPreview) -> list[Table]:
    """A row per replica with its reason, and a row per broker with the counts."""
    told = preview.explanation
    replicas: list[Sequence[Cell]] = [
        (
            preview.name, str(index), str(one.broker), "leader" if one.is_leader else "follower",
            one.reason,
        )
        for index, row in enumerate(told.partitions)
        for one in row
    ]  # fmt: skip
    brokers: list[Sequence[Cell]] = [
        (
            str(one.broker), one.rack, one.availability.value, one.replicas_before,
            one.replicas_after, one.leaders_before, one.leaders_after, _rate(one.bytes_in),
            _rate(one.bytes_out), one.note or None,
        )
        for one in told.brokers
    ]  # fmt: skip
    factor = len(told.partitions[0])
    title = (
        f"{preview.name} would have {counted(len(told.partitions), 'partition')}, replication "
        f"factor {factor} (placement.policy={told.policy}). {NOTE}"
    )
    return [
        Table(
            kind="replica",
            columns=("topic", "partition", "broker", "role", "why"),
            rows=replicas,
            title=title,
        ),
        Table(
            kind="broker",
            columns=(
                "broker", "rack", "state", "replicas", "replicas after", "leaders",
                "leaders after", "bytes in/s", "bytes out/s", "note",
            ),
            rows=brokers,
            optional=("rack", "bytes in/s", "bytes out/s", "note"),
        ),
    ]  # fmt: skip


def _rate(rate: float | None) -> ByteCount | None:
    return None if rate is None else ByteCount(rate)
