"""What the cluster's quorum says of itself: who votes, who leads, and how far each replica is."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from uuid import UUID

from riverrun.cli.output import Table
from riverrun.cli.session import check
from riverrun.client.pool import Pool
from riverrun.client.retry import RETRIABLE
from riverrun.model.errors import KafkaError
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_quorum_request import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.describe_quorum_response import DescribeQuorumResponse

METADATA_TOPIC = "__cluster_metadata"
NOBODY = -1


def written_id(directory_id: UUID | None) -> str | None:
    """As meta.properties and Apache's tools write it."""
    if directory_id is None:
        return None
    return base64.urlsafe_b64encode(directory_id.bytes).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A copy of the metadata log. Times are in milliseconds since 1970, None where unknown."""

    id: int
    directory_id: UUID | None
    role: str
    endpoint: str | None
    end_offset: int
    lag: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None

    def described(self) -> dict[str, object]:
        return {
            "id": self.id,
            "directory_id": written_id(self.directory_id),
            "role": self.role,
            "endpoint": self.endpoint,
            "log_end_offset": self.end_offset,
            "lag": self.lag,
            "last_fetch_ms": self.last_fetch_ms,
            "last_caught_up_ms": self.last_caught_up_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    leader: int | None
    epoch: int
    high_watermark: int
    replicas: tuple[Replica, ...]

    @property
    def voters(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self.replicas if replica.role != "observer")

    def role_of(self, node: int) -> str | None:
        return next((replica.role for replica in self.replicas if replica.id == node), None)

    def described(self) -> dict[str, object]:
        return {
            "leader": self.leader,
            "epoch": self.epoch,
            "high_watermark": self.high_watermark,
            "replicas": [replica.described() for replica in self.replicas],
        }


async def ask_quorum(pool: Pool) -> Quorum:
    wanted = TopicData(topic_name=METADATA_TOPIC, partitions=(PartitionData(partition_index=0),))
    answer: DescribeQuorumResponse = await pool.request(
        ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=(wanted,))
    )
    check(answer.error_code, answer.error_message, "quorum")
    state = answer.topics[0].partitions[0]
    check(state.error_code, state.error_message, "quorum")
    places = {
        node.node_id: f"{at.host}:{at.port}" for node in answer.nodes for at in node.listeners[:1]
    }
    ends = [row.log_end_offset for row in state.current_voters if row.replica_id == state.leader_id]
    end = ends[0] if ends else state.high_watermark
    replicas = [
        Replica(
            id=row.replica_id,
            directory_id=row.replica_directory_id,
            role=role if row.replica_id != state.leader_id else "leader",
            endpoint=places.get(row.replica_id),
            end_offset=row.log_end_offset,
            lag=max(0, end - row.log_end_offset),
            last_fetch_ms=_time(row.last_fetch_timestamp),
            last_caught_up_ms=_time(row.last_caught_up_timestamp),
        )
        for role, rows in (("follower", state.current_voters), ("observer", state.observers))
        for row in rows
    ]
    return Quorum(
        leader=None if state.leader_id == NOBODY else state.leader_id,
        epoch=state.leader_epoch,
        high_watermark=state.high_watermark,
        replicas=tuple(
            sorted(replicas, key=lambda replica: (replica.role == "observer", replica.id))
        ),
    )


async def ask_quorum_or_none(pool: Pool) -> Quorum:
    """A quorum without a leader is something to show, and no reason to show nothing."""
    try:
        return await ask_quorum(pool)
    except KafkaError as error:
        if error.code not in RETRIABLE:
            raise
        return Quorum(leader=None, epoch=-1, high_watermark=-1, replicas=())


def _time(timestamp: int) -> int | None:
    return None if timestamp < 0 else timestamp


def quorum_table(quorum: Quorum, now_ms: int, *, kind: str | None = None) -> Table:
    return Table(
        kind=kind,
        columns=(
            "node", "role", "endpoint", "log end", "lag", "fetched", "caught up", "directory",
        ),
        is_last_folded=True,
        rows=[
            (
                str(r.id), r.role, r.endpoint, r.end_offset, r.lag, _ago(r.last_fetch_ms, now_ms),
                _ago(r.last_caught_up_ms, now_ms),
                written_id(r.directory_id),
            )
            for r in quorum.replicas
        ],
    )  # fmt: skip


def _ago(then_ms: int | None, now_ms: int) -> str | None:
    return None if then_ms is None else f"{max(0, now_ms - then_ms) / 1000:.1f} s ago"
