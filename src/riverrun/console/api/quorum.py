"""The metadata quorum: leader, voters, observers and features."""

from __future__ import annotations

from msgspec import Struct

from riverrun.admin.cluster.report import ask_features
from riverrun.admin.quorum.report import QuorumReplicaRow, ask_quorum_or_empty, written_id
from riverrun.console.routing import ApiEndpoint, ClusterRequest


class ListedVoter(Struct, frozen=True, kw_only=True):
    """A replica of the metadata log. Values are null while they are unknown."""

    node: int
    directory_id: str | None
    role: str
    """leader, follower, observer, or silent: a voter that does not fetch from the leader."""
    end_offset: int | None
    lag: int | None
    last_fetch_ms: int | None
    last_caught_up_ms: int | None
    endpoint: str | None


class QuorumView(Struct, frozen=True, kw_only=True):
    """The quorum as its leader reports it. Without a leader, ``leader`` is null and the lists are
    empty."""

    leader: int | None
    epoch: int
    high_watermark: int
    voters: list[ListedVoter]
    observers: list[ListedVoter]
    features: dict[str, int]
    command: str


async def get_quorum(request: ClusterRequest) -> QuorumView:
    report = await ask_quorum_or_empty(request.pool)
    voters = {row.id for row in report.voters}
    return QuorumView(
        leader=report.leader,
        epoch=report.epoch,
        high_watermark=report.high_watermark,
        voters=[_member(row) for row in report.voters],
        observers=[_member(row) for row in report.replicas if row.id not in voters],
        features=await ask_features(request.pool),
        command=request.cluster.command("quorum", "status"),
    )


def _member(row: QuorumReplicaRow) -> ListedVoter:
    return ListedVoter(
        node=row.id,
        directory_id=written_id(row.directory_id),
        role=row.role,
        end_offset=row.end_offset,
        lag=row.lag,
        last_fetch_ms=row.last_fetch_ms,
        last_caught_up_ms=row.last_caught_up_ms,
        endpoint=row.endpoint,
    )


ENDPOINTS = (
    ApiEndpoint(
        "GET",
        "quorum",
        get_quorum,
        "The metadata quorum: leader, voters, observers and features",
        response=QuorumView,
        tag="quorum",
    ),
)
