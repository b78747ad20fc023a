"""AppendAudit: our own API, by which brokers write audit events to the leader of their partition.

Version 0, not advertised. Produce refuses the topic to everybody, so this is the only way in. The
sender must have the right ClusterAction and prove by its registration that it is a broker.
"""

from __future__ import annotations

import asyncio
from typing import Final

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.model.names import AUDIT_TOPIC
from riverrun.server.coordination import PartitionLog
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import missing
from riverrun.server.services import BrokerServices
from riverrun.wire.private.append_audit_request import AppendAuditRequest
from riverrun.wire.private.append_audit_response import AppendAuditResponse

COMMIT_SECONDS_MAX: Final = 5.0


async def handle(
    services: BrokerServices, context: RequestContext, request: AppendAuditRequest
) -> AppendAuditResponse:
    sender = services.metadata.current.brokers.get(NodeId(request.broker_id))
    if sender is None or sender.incarnation != request.incarnation_id:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    index = request.partition_index
    partition = services.replicas.find(AUDIT_TOPIC, index)
    if partition is None:
        raise KafkaError(missing(services, AUDIT_TOPIC, index))
    audit_partition = PartitionLog(partition, services.log_manager, services.clock)
    try:
        async with asyncio.timeout(COMMIT_SECONDS_MAX):
            await audit_partition.append(request.batch)
    except TimeoutError:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT) from None
    except OSError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    return AppendAuditResponse()
