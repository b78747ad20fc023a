"""Between what nodes say and what it is on the wire."""

from __future__ import annotations

from uuid import UUID

from riverrun.model.ids import NodeId
from riverrun.raft.types import NO_DIRECTORY, Voter
from riverrun.server.formation.decision import LISTENER, Address, Heard, Proposal
from riverrun.wire.private.discover_node_response import (
    DiscoverNodeResponse,
    NamedNode,
    NodeAddress,
)
from riverrun.wire.private.form_cluster_request import FirstVoter, FormClusterRequest


def answer_of(heard: Heard) -> DiscoverNodeResponse:
    named = heard.named
    return DiscoverNodeResponse(
        node_id=heard.node_id,
        directory_id=heard.directory_id,
        is_controller=heard.is_controller,
        cluster_id=heard.cluster_id,
        promised=heard.promised,
        controller=_written(() if heard.controller is None else (heard.controller,)),
        named=None
        if named is None
        else tuple(NamedNode(node_id=n, directory_id=d) for n, d in named),
        controllers=_written(heard.controllers),
        namesakes=_written(heard.namesakes),
    )


def heard_of(answer: DiscoverNodeResponse) -> Heard:
    named = answer.named
    controller = _read(answer.controller)
    return Heard(
        node_id=NodeId(answer.node_id),
        directory_id=_uuid(answer.directory_id),
        is_controller=answer.is_controller,
        cluster_id=answer.cluster_id,
        promised=answer.promised,
        controller=controller[0] if controller else None,
        named=None
        if named is None
        else tuple(sorted((NodeId(n.node_id), _uuid(n.directory_id)) for n in named)),
        controllers=_read(answer.controllers),
        namesakes=_read(answer.namesakes),
    )


def request_of(proposal: Proposal, *, is_agreed: bool) -> FormClusterRequest:
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


def proposal_of(request: FormClusterRequest) -> Proposal:
    return Proposal(
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


def _written(addresses: tuple[Address, ...]) -> tuple[NodeAddress, ...]:
    return tuple(NodeAddress(host=host, port=port) for host, port in addresses)


def _read(addresses: tuple[NodeAddress, ...]) -> tuple[Address, ...]:
    return tuple((address.host, address.port) for address in addresses)


def _uuid(directory_id: UUID | None) -> UUID:
    """The zero id is written for none."""
    return NO_DIRECTORY if directory_id is None else directory_id
