"""DescribeLogDirs, versions 1 to 5: the size of each partition on disk (KIP-113, KIP-827), and
whether the directory is cordoned (KIP-1066).
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.replication.partition import Partition
from riverrun.security.acls import AclOperation
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.describe_log_dirs_request import DescribeLogDirsRequest
from riverrun.wire.messages.describe_log_dirs_response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(
    services: BrokerServices, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    if not services.access.permits_cluster(context, AclOperation.DESCRIBE):
        return DescribeLogDirsResponse(
            throttle_time_ms=0, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=()
        )
    topics: list[DescribeLogDirsTopic] = []
    if request.topics is None:
        for topic, partitions in services.replicas.by_name.items():
            topics.append(_describe(topic, list(partitions.values())))
    else:
        for wanted in request.topics:
            held = services.replicas.by_name.get(wanted.topic, {})
            found = [held[index] for index in wanted.partitions if index in held]
            if found:
                topics.append(_describe(wanted.topic, found))
    settings = services.configs.effective(services.metadata.current, services.settings.directory)
    space = await services.log_manager.in_thread(services.logs.space)
    result = DescribeLogDirsResult(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR if services.logs.is_offline else ErrorCode.NONE,
        log_dir=services.logs.path,
        topics=tuple(topics),
        total_bytes=space.total_bytes,
        usable_bytes=space.usable_bytes,
        is_cordoned=settings.is_cordoned(services.logs.path),
    )
    return DescribeLogDirsResponse(throttle_time_ms=0, results=(result,))


def _describe(topic: str, partitions: list[Partition]) -> DescribeLogDirsTopic:
    return DescribeLogDirsTopic(
        name=topic,
        partitions=tuple(
            DescribeLogDirsPartition(
                partition_index=partition.name.partition,
                partition_size=partition.log.size_bytes,
                offset_lag=0,
                is_future_key=False,
            )
            for partition in partitions
        ),
    )
