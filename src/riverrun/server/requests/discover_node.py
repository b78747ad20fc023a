"""DiscoverNode: our own API, by which a node without a cluster finds this one.

Version 0, not advertised. It changes nothing, so every listener serves it.
"""

from __future__ import annotations

from riverrun.model.ids import NodeId
from riverrun.server.dispatch.context import CONTROLLER, RequestContext
from riverrun.server.formation.decision import Address, NodeReport
from riverrun.server.formation.messages import encode_report
from riverrun.server.services import NodeServices
from riverrun.wire.private.discover_node_request import DiscoverNodeRequest
from riverrun.wire.private.discover_node_response import DiscoverNodeResponse


def handle(
    services: NodeServices, context: RequestContext, request: DiscoverNodeRequest
) -> DiscoverNodeResponse:
    settings, metadata = services.settings, services.metadata
    own = settings.controller_advertised()
    leader = metadata.leader_endpoint()
    controllers: dict[Address, None] = {} if leader is None else {(leader[1], leader[2]): None}
    for voter in metadata.voters:
        if CONTROLLER in voter.endpoints:
            controllers[voter.endpoints[CONTROLLER]] = None
    return encode_report(
        NodeReport(
            node_id=settings.node_id,
            directory_id=services.logs.directory_id,
            is_controller=settings.formation.is_controller,
            cluster_id=services.logs.cluster_id,
            controller=None if own is None else (own.host, own.port),
            controllers=tuple(controllers),
            namesakes=_namesakes(services, request),
        )
    )


def _namesakes(services: NodeServices, request: DiscoverNodeRequest) -> tuple[Address, ...]:
    """Addresses of a node with the same id and another directory. It may be alive."""
    found: dict[Address, None] = {}
    known = services.metadata.current.brokers.get(NodeId(request.node_id))
    if known is not None and not known.is_fenced and request.directory_id not in known.directories:
        found.update({(at.host, at.port): None for at in known.endpoints.values()})
    for voter in services.metadata.voters:
        if voter.id == request.node_id and voter.directory_id != request.directory_id:
            found.update(dict.fromkeys(voter.endpoints.values()))
    return tuple(found)
