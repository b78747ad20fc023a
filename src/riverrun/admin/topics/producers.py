"""The idempotent producers of a topic's partitions, as their leaders report them."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.admin.cluster.replica_lag import leaders_by_node
from riverrun.admin.requests import ask_each, check
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_producers_request import (
    DescribeProducersRequest,
    TopicRequest,
)
from riverrun.wire.messages.describe_producers_response import DescribeProducersResponse
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

ANSWER_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRow:
    """A producer of a partition."""

    partition: int
    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start: int | None
    """The first offset of its open transaction."""


async def ask_producers(pool: ConnectionPool, topic: MetadataResponseTopic) -> list[ProducerRow]:
    """By partition and producer id. Leaders that do not respond are left out."""
    messages = {
        node: DescribeProducersRequest(
            topics=tuple(
                TopicRequest(name=name, partition_indexes=tuple(indexes))
                for name, indexes in led.items()
            )
        )
        for node, led in leaders_by_node([topic]).items()
        if node in pool.cluster.nodes
    }
    answers, _ = await ask_each(
        pool, messages, ApiKey.DESCRIBE_PRODUCERS, limit_s=ANSWER_SECONDS_MAX
    )
    found: list[ProducerRow] = []
    answer: DescribeProducersResponse
    for answer in answers.values():
        for row in answer.topics:
            for partition in row.partitions:
                if partition.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    continue
                check(partition.error_code, partition.error_message, f"topic {row.name}")
                found += [
                    ProducerRow(
                        partition=partition.partition_index,
                        producer_id=each.producer_id,
                        epoch=each.producer_epoch,
                        last_sequence=each.last_sequence,
                        last_timestamp_ms=each.last_timestamp,
                        transaction_start=each.current_txn_start_offset
                        if each.current_txn_start_offset >= 0
                        else None,
                    )
                    for each in partition.active_producers
                ]
    return sorted(found, key=lambda each: (each.partition, each.producer_id))
