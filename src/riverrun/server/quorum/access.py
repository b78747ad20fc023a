"""How request handlers reach this node's member of the quorum."""

from __future__ import annotations

from typing import TypeVar

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.raft.messages import Request, Response
from riverrun.server.services import NodeServices

R = TypeVar("R")


def check_cluster(services: NodeServices, cluster_id: str | None) -> None:
    """A member of another cluster must not be listened to, whatever its epoch is."""
    if cluster_id is not None and cluster_id != services.logs.cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)


async def ask(services: NodeServices, request: Request, kind: type[R]) -> R:
    response: Response = await services.metadata.receive(request)
    assert isinstance(response, kind), f"{response} answers {request}"
    return response
