"""Whether a node without a cluster forms one, joins one, or waits.

A cluster is formed only when every node behind the seeds responds, is blank and sees the same
controllers. The controller with the lowest id then proposes the cluster. The proposal holds when
every controller has durably promised it and nothing else. Two different clusters would need a node
that promised twice, or controllers that do not see each other. A majority is not enough: two wiped
nodes of three would form a second cluster. A crash in between blocks formation until the node
has restarted, but never forks the cluster. ``formation.py`` carries the decisions out.

    blank     --a seed belongs to a cluster-->            joins it as an observer
    blank     --all blank, all agree, lowest id-->        promises its own proposal, sends it
    blank     --receives a proposal-->                    promises it
    promised  --all have promised-->                      forms it (proposer), notifies the rest
    promised  --is notified, or a seed has the cluster--> forms it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.raft.types import Voter

Address = tuple[str, int]
NodeKey = tuple[NodeId, UUID]
"""A node's id and directory id. A node that lost its data has a new key."""

LISTENER = "CONTROLLER"
_START_EMPTY = (
    "if that cluster was never formed, start all of its nodes with empty data directories"
)


class FormationError(Exception):
    """The node must not start with these seeds. The text states the cause and the remedy."""


class FormationStopped(Exception):
    """The node was stopped before it belonged to a cluster."""


class Formed(Struct, frozen=True, kw_only=True):
    """The cluster that the node belongs to. The data directory stores its id."""

    cluster_id: str
    voters: tuple[Voter, ...] = ()
    """The first voters, if the cluster is new and this node is one of them."""
    bootstrap: tuple[Address, ...] = ()
    """Controllers to ask for the quorum leader while the metadata names none."""


class NodeReport(Struct, frozen=True, kw_only=True):
    """A node's description of itself."""

    node_id: NodeId
    directory_id: UUID
    is_controller: bool = True
    cluster_id: str | None = None
    promised: str | None = None
    """The cluster that it has promised to form."""
    controller: Address | None = None
    named: tuple[NodeKey, ...] | None = None
    """The controllers behind its seeds. None until all of its seeds have responded."""
    controllers: tuple[Address, ...] = ()
    """The voters of its cluster."""
    namesakes: tuple[Address, ...] = ()
    """Nodes of its cluster with the requester's id and another directory."""

    @property
    def key(self) -> NodeKey:
        return self.node_id, self.directory_id


class SeedResult(Struct, frozen=True, kw_only=True):
    """The response from one address of a seed, or the error."""

    address: str
    family: int = 0
    report: NodeReport | None = None
    error: str = ""


class ClusterProposal(Struct, frozen=True, kw_only=True):
    """A cluster to be formed. It determines the first snapshot that its voters write."""

    cluster_id: str
    proposed_ms: int
    voters: tuple[Voter, ...]

    @property
    def keys(self) -> tuple[NodeKey, ...]:
        return tuple(sorted((v.id, v.directory_id) for v in self.voters if v.directory_id))


class FormationState(Struct, frozen=True, kw_only=True):
    """State of a node without a cluster after one round of requests to its seeds."""

    me: NodeReport
    seeds: Mapping[str, Sequence[SeedResult]]
    """By seed as configured, without this node itself."""
    namesakes: Sequence[SeedResult] = ()
    """From the addresses where a cluster knows another node with our id."""
    expect: int = 0
    wanted_cluster: str | None = None
    promise: ClusterProposal | None = None
    is_agreed: bool = False

    def results(self) -> Iterator[SeedResult]:
        for results in self.seeds.values():
            yield from results

    @property
    def others(self) -> tuple[NodeReport, ...]:
        """The nodes that responded, each once, without this node."""
        found: dict[UUID, NodeReport] = {}
        for result in self.results():
            report = result.report
            if report is not None and report.directory_id != self.me.directory_id:
                found.setdefault(report.directory_id, report)
        return tuple(found.values())

    @property
    def members(self) -> tuple[NodeReport, ...]:
        """The voters of a cluster formed now, lowest id first."""
        nodes = (self.me, *self.others)
        return tuple(sorted((n for n in nodes if n.is_controller), key=lambda n: n.key))

    def missing_seeds(self) -> list[str]:
        """Seeds that did not respond, with the errors.

        All addresses of a DNS name must respond, in at least one address family: a host may not
        listen on its address of the other family, but an address may also be another node.
        """
        found = []
        for seed, results in self.seeds.items():
            families = {result.family: True for result in results}
            for result in results:
                families[result.family] &= result.report is not None
            if not any(families.values()):
                errors = [f"{r.address} {r.error}".strip() for r in results if r.report is None]
                found.append(f"{seed} ({', '.join(errors) or 'no address'})")
        return found

    def named(self) -> tuple[NodeKey, ...] | None:
        """The controllers behind our seeds, including this node; None while a seed is missing."""
        return None if self.missing_seeds() else tuple(member.key for member in self.members)


class Wait(Struct, frozen=True):
    """Ask again later."""

    reason: str


class Refuse(Struct, frozen=True):
    """The node cannot start with these settings and this directory."""

    error: str


class JoinCluster(Struct, frozen=True):
    """Join an existing cluster."""

    cluster_id: str
    bootstrap: tuple[Address, ...]


class ProposeCluster(Struct, frozen=True):
    """Ask all other controllers to promise. ``proposal`` is our own earlier promise, if any."""

    proposal: ClusterProposal | None
    members: tuple[NodeReport, ...]


class FormCluster(Struct, frozen=True):
    """All controllers have promised: become a voter of the new cluster."""

    proposal: ClusterProposal


FormationStep = Wait | Refuse | JoinCluster | ProposeCluster | FormCluster


def decide(state: FormationState) -> FormationStep:
    """The next step of a node without a cluster."""
    me, promise = state.me, state.promise
    conflict = _conflict(state)
    if conflict is not None:
        return Refuse(conflict)
    if promise is not None and state.is_agreed:
        return FormCluster(promise)
    formed = [node for node in state.others if node.cluster_id is not None]
    if formed:
        if promise is not None:
            return FormCluster(promise)
        bootstrap = known_controllers(state.others)
        if not bootstrap:
            return Wait(f"no seed knows the controllers of cluster {formed[0].cluster_id} yet")
        return JoinCluster(formed[0].cluster_id or "", bootstrap)
    missing = state.missing_seeds()
    if me.cluster_id is not None:
        return _decide_without_metadata(state, me.cluster_id, missing)
    if not me.is_controller:
        return Wait("no seed belongs to a cluster yet, and this node is not a controller")
    if not state.seeds and promise is not None:
        return Refuse(f"{_promise_text(promise)}: start it with their addresses in seed.nodes")
    if missing:
        return Wait(f"no response from {', '.join(missing)}")
    return _decide_among_blank(state)


def _decide_without_metadata(
    state: FormationState, cluster_id: str, missing: Sequence[str]
) -> FormationStep:
    """The directory belongs to a cluster, but its metadata log is gone."""
    if not state.seeds:
        return Refuse(
            f"this directory belongs to cluster {cluster_id}, its metadata is gone, and no other "
            "node is known: restore the directory from a copy, name nodes of the cluster in "
            "seed.nodes, or start with an empty directory"
        )
    seeds = f"there is no response from {', '.join(missing)}" if missing else "all seeds are blank"
    return Wait(f"this node belongs to cluster {cluster_id}, and {seeds}")


def _conflict(state: FormationState) -> str | None:
    """A conflict that waiting cannot resolve."""
    conflict = _namesake_conflict(state)
    if conflict is not None:
        return conflict
    ids = sorted({node.cluster_id for node in state.others if node.cluster_id is not None})
    if len(ids) > 1:
        where = ", ".join(f"{n.node_id} in {n.cluster_id}" for n in state.others if n.cluster_id)
        return f"the seeds belong to different clusters (node {where}): name nodes of one cluster"
    wanted = state.wanted_cluster
    if ids and wanted is not None and ids[0] != wanted:
        return _wrong_cluster(ids[0], wanted)
    promise = state.promise
    if promise is not None and state.me.key not in promise.keys:
        return f"{_promise_text(promise)}, but with another directory: {_START_EMPTY}"
    if ids and promise is not None and ids[0] != promise.cluster_id:
        return (
            f"{_promise_text(promise)}, and the seeds belong to cluster {ids[0]}: if the former "
            f"was never formed, start this node with an empty data directory"
        )
    return None


def _namesake_conflict(state: FormationState) -> str | None:
    me = state.me
    for result in (*state.results(), *state.namesakes):
        other = result.report
        if other is not None and other.node_id == me.node_id and other.key != me.key:
            return (
                f"node id {me.node_id} is in use by the node at {result.address}: give this node "
                f"another node.id, or stop that one"
            )
    return None


def _wrong_cluster(found: str, ours: str) -> str:
    return (
        f"the seeds belong to cluster {found}, and this node belongs to {ours}: start it with the "
        f"seeds of its own cluster, or with an empty data directory and without cluster.id"
    )


def rejoin_conflict(state: FormationState) -> str | None:
    """Why a node that already belongs to a cluster must not start with these seeds.

    It may start without any response. But if the seeds know only other clusters, addresses or
    directories are mixed up.
    """
    conflict = _namesake_conflict(state)
    clusters = [node.cluster_id for node in state.others if node.cluster_id is not None]
    if conflict is None and clusters and state.me.cluster_id not in clusters:
        return _wrong_cluster(clusters[0], state.me.cluster_id or "")
    return conflict


def _decide_among_blank(state: FormationState) -> FormationStep:
    """All seeds have responded, and none of them belongs to a cluster."""
    members, expect = state.members, state.expect
    if not expect:
        for seed, results in state.seeds.items():
            keys = sorted({r.report.key for r in results if r.report is not None})
            if len(keys) > 1:
                return Refuse(
                    f"{seed} resolves to {len(keys)} nodes: set bootstrap.expect to the number of "
                    f"nodes that form the cluster, or name each of them in seed.nodes"
                )
        if not state.others:
            return Refuse(
                "seed.nodes names no other node: leave it empty for a cluster of one node, or set "
                "bootstrap.expect to the number of controllers that form the cluster"
            )
    elif len(members) != expect:
        return Wait(f"found {len(members)} of the {expect} controllers that bootstrap.expect names")
    ids = [member.node_id for member in members]
    for node_id in ids:
        if ids.count(node_id) > 1:
            return Wait(f"two of the seeds have node id {node_id}: give each node its own")
    named = tuple(member.key for member in members)
    for other in state.others:
        if other.named is None:
            return Wait(f"node {other.node_id} has no response from some of its seeds yet")
        if other.named != named:
            return Wait(
                f"node {other.node_id} names the controllers {_ids(other.named)}, and this node "
                f"names {_ids(named)}: give both the same nodes in seed.nodes"
            )
    return _decide_by_promises(state, named)


def _decide_by_promises(state: FormationState, named: tuple[NodeKey, ...]) -> FormationStep:
    """All controllers are blank and name the same controllers."""
    me, members, promise = state.me, state.members, state.promise
    lowest = members[0]
    if promise is not None and promise.keys != named:
        return Wait(
            f"{_promise_text(promise)}, and now finds {_ids(named)}, or new directories of "
            f"them: {_START_EMPTY}"
        )
    if lowest.key != me.key:
        return Wait(f"node {lowest.node_id} proposes the cluster")
    if promise is None:
        for other in state.others:
            if other.promised is not None:
                return Wait(
                    f"node {other.node_id} has promised to form cluster {other.promised}, which "
                    f"this directory does not know: {_START_EMPTY}"
                )
    for member in members:
        if member.controller is None:
            return Wait(f"node {member.node_id} has no CONTROLLER listener")
    return ProposeCluster(promise, members)


def rejection_reason(
    me: NodeReport,
    proposal: ClusterProposal,
    promise: ClusterProposal | None,
    wanted_cluster: str | None,
) -> str | None:
    """Why a proposal must not be promised. None if it may be, or already was."""
    if me.key not in proposal.keys:
        return f"node {me.node_id} with directory {me.directory_id} is not among its voters"
    if promise is not None:
        if promise != proposal:
            return f"node {me.node_id} has promised to form cluster {promise.cluster_id}"
        return None
    if me.named is None:
        return f"node {me.node_id} has no response from some of its seeds yet"
    if me.named != proposal.keys:
        return f"node {me.node_id} names the controllers {_ids(me.named)}"
    if wanted_cluster is not None and wanted_cluster != proposal.cluster_id:
        return f"node {me.node_id} is configured for cluster {wanted_cluster}"
    return None


def voters_from(members: Sequence[NodeReport]) -> tuple[Voter, ...]:
    voters = []
    for member in members:
        assert member.controller is not None, f"node {member.node_id} has no controller"
        voters.append(
            Voter(
                id=member.node_id,
                directory_id=member.directory_id,
                endpoints={LISTENER: member.controller},
            )
        )
    return tuple(voters)


def known_controllers(others: Sequence[NodeReport]) -> tuple[Address, ...]:
    """The voters' addresses, as reported by members of a cluster."""
    known = {address: None for n in others if n.cluster_id for address in n.controllers}
    return tuple(known)


def _promise_text(promise: ClusterProposal) -> str:
    return f"this node has promised to form cluster {promise.cluster_id} with {_ids(promise.keys)}"


def _ids(keys: Sequence[NodeKey]) -> str:
    return ", ".join(str(node_id) for node_id, _ in keys)
