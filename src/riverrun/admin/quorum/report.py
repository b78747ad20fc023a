"""The state of the quorum: voters, leader, and the position of each replica."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from uuid import UUID

from riverrun.admin.requests import check
from riverrun.admin.tables import Bad, Table
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE
from riverrun.model.errors import KafkaError
from riverrun.model.names import METADATA_TOPIC
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_quorum_request import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.describe_quorum_response import DescribeQuorumResponse, ReplicaState

NO_NODE = -1
SILENT_AFTER_MS = 2_000
"""Replicas fetch several times within this time, even without new records."""
UNKNOWN = "unknown"


def written_id(directory_id: UUID | None) -> str | None:
    """In the form of meta.properties and Apache's tools."""
    if directory_id is None:
        return None
    return base64.urlsafe_b64encode(directory_id.bytes).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplicaRow:
    """A replica of the metadata log. Times are milliseconds since 1970, None if unknown."""

    id: int
    directory_id: UUID | None
    role: str
    """leader, follower, observer, or silent: a voter that does not fetch from the leader."""
    endpoint: str | None
    end_offset: int | None
    """As last reported to the leader."""
    lag: int | None
    """None while the replica is silent."""
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
class QuorumReport:
    leader: int | None
    epoch: int
    high_watermark: int
    replicas: tuple[QuorumReplicaRow, ...]

    def in_words(self) -> str:
        leader = "no leader" if self.leader is None else f"leader {self.leader}"
        text = f"{leader}, epoch {self.epoch}, committed up to {self.high_watermark:,}"
        silent = [str(replica.id) for replica in self.replicas if replica.role == "silent"]
        if not silent:
            return text
        does = "node {} does" if len(silent) == 1 else "nodes {} do"
        return f"{text}; {does.format(', '.join(silent))} not fetch"

    @property
    def voters(self) -> tuple[QuorumReplicaRow, ...]:
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


async def ask_quorum(pool: ConnectionPool) -> QuorumReport:
    wanted = TopicData(topic_name=METADATA_TOPIC, partitions=(PartitionData(partition_index=0),))
    answer: DescribeQuorumResponse = await pool.request(
        ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=(wanted,))
    )
    return read_quorum(answer)


def read_quorum(answer: DescribeQuorumResponse) -> QuorumReport:
    check(answer.error_code, answer.error_message, "quorum")
    state = answer.topics[0].partitions[0]
    check(state.error_code, state.error_message, "quorum")
    places = {
        node.node_id: f"{at.host}:{at.port}" for node in answer.nodes for at in node.listeners[:1]
    }
    leaders = [row for row in state.current_voters if row.replica_id == state.leader_id]
    end = leaders[0].log_end_offset if leaders else state.high_watermark
    # A leader reports its own last fetch as now, by its clock, which may differ from ours.
    rows = [*state.current_voters, *state.observers]
    now_ms = max((row.last_fetch_timestamp for row in leaders or rows), default=0)

    def replica(row: ReplicaState, role: str) -> QuorumReplicaRow:
        is_heard = row in leaders or (
            row.log_end_offset >= 0
            and row.last_fetch_timestamp >= 0
            and now_ms - row.last_fetch_timestamp <= SILENT_AFTER_MS
        )
        return QuorumReplicaRow(
            id=row.replica_id,
            directory_id=row.replica_directory_id,
            role=role,
            endpoint=places.get(row.replica_id),
            end_offset=_known(row.log_end_offset),
            lag=max(0, end - row.log_end_offset) if is_heard else None,
            last_fetch_ms=_known(row.last_fetch_timestamp),
            last_caught_up_ms=_known(row.last_caught_up_timestamp),
        )

    voters = [
        replica(row, "leader" if row in leaders else "follower") for row in state.current_voters
    ]
    voters = [replace(voter, role="silent") if voter.lag is None else voter for voter in voters]
    observers = [replica(row, "observer") for row in state.observers]
    return QuorumReport(
        leader=None if state.leader_id == NO_NODE else state.leader_id,
        epoch=state.leader_epoch,
        high_watermark=state.high_watermark,
        replicas=tuple(
            sorted([*voters, *observers], key=lambda one: (one.role == "observer", one.id))
        ),
    )


async def ask_quorum_or_empty(pool: ConnectionPool) -> QuorumReport:
    """Returns an empty report if the quorum has no leader."""
    try:
        return await ask_quorum(pool)
    except KafkaError as error:
        if error.code not in RETRIABLE:
            raise
        return QuorumReport(leader=None, epoch=-1, high_watermark=-1, replicas=())


def _known(value: int) -> int | None:
    return None if value < 0 else value


def quorum_table(quorum: QuorumReport, now_ms: int, *, kind: str | None = None) -> Table:
    return Table(
        kind=kind,
        columns=(
            "node", "role", "endpoint", "log end", "lag", "fetched", "caught up", "directory",
        ),
        wide=("directory",),
        rows=[
            (
                str(r.id), Bad(r.role) if r.role == "silent" else r.role, r.endpoint,
                UNKNOWN if r.end_offset is None else r.end_offset,
                UNKNOWN if r.lag is None else r.lag,
                _ago(r.last_fetch_ms, now_ms), _ago(r.last_caught_up_ms, now_ms),
                written_id(r.directory_id),
            )
            for r in quorum.replicas
        ],
    )  # fmt: skip


def _ago(then_ms: int | None, now_ms: int) -> str | None:
    return None if then_ms is None else f"{max(0, now_ms - then_ms) / 1000:.1f} s ago"
