"""Conversion between formation values and wire messages."""

from __future__ import annotations

from uuid import UUID

from riverrun.model.ids import NodeId
from riverrun.raft.types import NO_DIRECTORY, Voter
from riverrun.server.formation.decision import LISTENER, Address, ClusterProposal, NodeReport
from riverrun.wire.private.discover_node_response import (
    DiscoverNodeResponse,
    NamedNode,
    NodeAddress,
)
from riverrun.wire.private.form_cluster_request import FirstVoter, FormClusterRequest


def encode_report(report: NodeReport) -> DiscoverNodeResponse:
    named = report.named
    return DiscoverNodeResponse(
        node_id=report.node_id,
        directory_id=report.directory_id,
        is_controller=report.is_controller,
        cluster_id=report.cluster_id,
        promised=report.promised,
        controller=_encode_addresses(() if report.controller is None else (report.controller,)),
        named=None
        if named is None
        else tuple(NamedNode(node_id=n, directory_id=d) for n, d in named),
        controllers=_encode_addresses(report.controllers),
        namesakes=_encode_addresses(report.namesakes),
    )


def decode_report(response: DiscoverNodeResponse) -> NodeReport:
    named = response.named
    controller = _decode_addresses(response.controller)
    return NodeReport(
        node_id=NodeId(response.node_id),
        directory_id=_uuid(response.directory_id),
        is_controller=response.is_controller,
        cluster_id=response.cluster_id,
        promised=response.promised,
        controller=controller[0] if controller else None,
        named=None
        if named is None
        else tuple(sorted((NodeId(n.node_id), _uuid(n.directory_id)) for n in named)),
        controllers=_decode_addresses(response.controllers),
        namesakes=_decode_addresses(response.namesakes),
    )


def encode_proposal(proposal: ClusterProposal, *, is_agreed: bool) -> FormClusterRequest:
    return FormClusterRequest(
        cluster_id=proposal.cluster_id,
        proposed_ms=proposal.proposed_ms,
        voters=tuple(
            FirstVoter(
                node_id=voter.id,
                directory_id=voter.directory_id,
                host=voter.endpoints[LISTENER][0],
                port=voter.endpoints[LISTENER][1],
            )
            for voter in proposal.voters
        ),
        is_agreed=is_agreed,
    )


def decode_proposal(request: FormClusterRequest) -> ClusterProposal:
    return ClusterProposal(
        cluster_id=request.cluster_id,
        proposed_ms=request.proposed_ms,
        voters=tuple(
            Voter(
                id=NodeId(entry.node_id),
                directory_id=_uuid(entry.directory_id),
                endpoints={LISTENER: (entry.host, entry.port)},
            )
            for entry in request.voters
        ),
    )


def _encode_addresses(addresses: tuple[Address, ...]) -> tuple[NodeAddress, ...]:
    return tuple(NodeAddress(host=host, port=port) for host, port in addresses)


def _decode_addresses(addresses: tuple[NodeAddress, ...]) -> tuple[Address, ...]:
    return tuple((address.host, address.port) for address in addresses)


def _uuid(directory_id: UUID | None) -> UUID:
    """On the wire the zero id is absent."""
    return NO_DIRECTORY if directory_id is None else directory_id
