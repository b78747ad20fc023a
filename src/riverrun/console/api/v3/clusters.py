"""Clusters and brokers of REST v3."""

from __future__ import annotations

from msgspec import Struct

from riverrun.admin.cluster.report import ask_brokers
from riverrun.admin.quorum.report import ask_quorum_or_empty
from riverrun.console.api.v3.frame import (
    V3Link,
    V3List,
    V3ListMetadata,
    V3Metadata,
    V3Request,
    base_of,
    cluster_ids,
    declared,
    not_found,
    operation,
)
from riverrun.console.routing import ClusterRequest
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.describe_cluster_response import DescribeClusterBroker


class V3Cluster(Struct, frozen=True, kw_only=True):
    """A Kafka cluster."""

    kind: str = "KafkaCluster"
    metadata: V3Metadata
    cluster_id: str
    controller: V3Link | None
    acls: V3Link
    brokers: V3Link
    broker_configs: V3Link
    consumer_groups: V3Link
    topics: V3Link
    partition_reassignments: V3Link


class V3Broker(Struct, frozen=True, kw_only=True):
    """A broker."""

    kind: str = "KafkaBroker"
    metadata: V3Metadata
    cluster_id: str
    broker_id: int
    host: str | None
    port: int | None
    rack: str | None
    configs: V3Link
    partition_replicas: V3Link


async def list_clusters(request: ClusterRequest) -> V3List[V3Cluster]:
    """The clusters of this console."""
    rows = [
        await _cluster(V3Request(request.at(name), cluster_id))
        for cluster_id, name in (await cluster_ids(request)).items()
    ]
    address = V3ListMetadata(self_=f"{base_of(request)}/clusters")
    return V3List(kind="KafkaClusterList", metadata=address, data=rows)


async def get_cluster(request: V3Request) -> V3Cluster:
    return await _cluster(request)


async def _cluster(request: V3Request) -> V3Cluster:
    leader = await _controller(request)
    return V3Cluster(
        metadata=request.metadata(),
        cluster_id=request.cluster_id,
        controller=None if leader is None else request.link("brokers", leader),
        acls=request.link("acls"),
        brokers=request.link("brokers"),
        broker_configs=request.link("broker-configs"),
        consumer_groups=request.link("consumer-groups"),
        topics=request.link("topics"),
        partition_reassignments=request.link("topics", "-", "partitions", "-", "reassignment"),
    )


async def _controller(request: V3Request) -> int | None:
    """The active controller; None if there is none, or if the user may not see the quorum."""
    try:
        return (await ask_quorum_or_empty(request.pool)).leader
    except KafkaError as error:
        if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return None
        raise


async def list_brokers(request: V3Request) -> V3List[V3Broker]:
    rows = [_broker(request, row) for row in await _brokers(request)]
    return request.listed("KafkaBrokerList", ["brokers"], rows)


async def get_broker(request: V3Request) -> V3Broker:
    wanted = request.number("broker_id")
    return _broker(request, await find_broker(request, wanted))


async def find_broker(request: V3Request, wanted: int) -> DescribeClusterBroker:
    """Raises ``V3Problem``."""
    for row in await _brokers(request):
        if row.broker_id == wanted:
            return row
    raise not_found(f"Broker {wanted} cannot be found in cluster {request.cluster_id}.")


async def _brokers(request: V3Request) -> list[DescribeClusterBroker]:
    rows = (await ask_brokers(request.pool)).brokers
    return sorted((row for row in rows if not row.is_fenced), key=lambda row: row.broker_id)


def _broker(request: V3Request, row: DescribeClusterBroker) -> V3Broker:
    place = ("brokers", row.broker_id)
    return V3Broker(
        metadata=request.metadata(*place, name=f"/broker={row.broker_id}"),
        cluster_id=request.cluster_id,
        broker_id=row.broker_id,
        host=row.host,
        port=row.port,
        rack=row.rack,
        configs=request.link(*place, "configs"),
        partition_replicas=request.link(*place, "partition-replicas"),
    )


ENDPOINTS = (
    *declared("GET", "/clusters", list_clusters, "List clusters", response=V3List[V3Cluster]),
    *operation("GET", "", get_cluster, "Get a cluster", response=V3Cluster),
    *operation("GET", "brokers", list_brokers, "List brokers", response=V3List[V3Broker]),
    *operation("GET", "brokers/{broker_id}", get_broker, "Get a broker", response=V3Broker),
)
