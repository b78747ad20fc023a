"""DescribeProducers: the producers that a replica knows, and their open transactions.

Behaviour:

* Followers respond too: administrators compare replicas, and search a broker for hanging
  transactions.

Version 0 (KIP-664).
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicName
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import missing
from riverrun.server.services import BrokerServices
from riverrun.storage.producers import ProducerEntry
from riverrun.wire.messages.describe_producers_request import DescribeProducersRequest
from riverrun.wire.messages.describe_producers_response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NO_TRANSACTION = -1


def handle(
    services: BrokerServices, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(
                    _described(services, context, topic.name, index)
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        ),
    )


def failed(
    request: DescribeProducersRequest, code: ErrorCode, message: str | None
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(
                    PartitionResponse(partition_index=index, error_code=code, active_producers=())
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        ),
    )


def _described(
    services: BrokerServices, context: RequestContext, topic: str, index: int
) -> PartitionResponse:
    try:
        services.access.require(context, AclOperation.READ, ResourceType.TOPIC, topic)
        partition = services.replicas.find(topic, index)
        if partition is None:
            is_topic = TopicName(topic) in services.metadata.current.topics_by_name
            message = None if is_topic else f"There is no topic {topic}."
            raise KafkaError(missing(services, topic, index), message)
    except KafkaError as error:
        return PartitionResponse(
            partition_index=index,
            error_code=error.code,
            error_message=error.message,
            active_producers=(),
        )
    return PartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE,
        active_producers=tuple(
            _state(producer) for producer in partition.log.producers.entries.values()
        ),
    )


def _state(producer: ProducerEntry) -> ProducerState:
    start = producer.transaction_start
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=NO_TRANSACTION if start is None else start,
    )
