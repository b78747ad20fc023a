"""How request handlers reach this node's member of the quorum."""

from __future__ import annotations

from typing import TypeVar

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.raft.messages import Request, Response
from riverrun.server.parts import Parts

R = TypeVar("R")


def check_cluster(parts: Parts, cluster_id: str | None) -> None:
    """A member of another cluster must not be listened to, whatever its epoch is."""
    if cluster_id is not None and cluster_id != parts.logs.cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)


async def ask(parts: Parts, request: Request, kind: type[R]) -> R:
    response: Response = await parts.metadata.receive(request)
    assert isinstance(response, kind), f"{response} answers {request}"
    return response
