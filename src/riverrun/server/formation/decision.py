"""Whether a node without a cluster may found one, joins one, or waits: decisions, no deeds.

A cluster is founded only when every node behind the seeds answers, is blank and names the same
controllers; then the one with the lowest id proposes, and the proposal holds when every controller
has promised it and nothing else, durably. Two different clusters would need a node that promised
twice, or controllers that do not name each other. A majority is not enough: two wiped nodes of
three would found a second cluster. A crash on the way blocks until the node is back, and forks
nothing. Asking, storing and answering is left to ``runner.py``.

    blank     --seeds know a cluster-->             joins it as an observer
    blank     --all blank, all agree, lowest-->     promises its own proposal, and proposes
    blank     --is asked to promise-->              promises
    promised  --all have promised-->                founds (the proposer), and tells the others
    promised  --is told, or a seed has founded-->   founds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.raft.types import Voter

Address = tuple[str, int]
Name = tuple[NodeId, UUID]
"""A node by its id and its directory: one that lost its data is another."""

LISTENER = "CONTROLLER"
_START_EMPTY = (
    "if that cluster never came to be, start all of its nodes with empty data directories"
)


class Heard(Struct, frozen=True, kw_only=True):
    """What a node says of itself. ``named`` is None as long as some of its seeds are silent."""

    node_id: NodeId
    directory_id: UUID
    is_controller: bool = True
    cluster_id: str | None = None
    promised: str | None = None
    controller: Address | None = None
    named: tuple[Name, ...] | None = None
    controllers: tuple[Address, ...] = ()
    namesakes: tuple[Address, ...] = ()

    @property
    def name(self) -> Name:
        return self.node_id, self.directory_id


class Reply(Struct, frozen=True, kw_only=True):
    """What came from one address of a seed; ``why`` it did not, if it did not."""

    address: str
    family: int = 0
    heard: Heard | None = None
    why: str = ""


class Proposal(Struct, frozen=True, kw_only=True):
    """A cluster that is to be. All that its voters write first follows from it."""

    cluster_id: str
    proposed_ms: int
    voters: tuple[Voter, ...]

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(sorted((v.id, v.directory_id) for v in self.voters if v.directory_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a blank node knows after it has asked everybody once."""

    me: Heard
    seeds: Mapping[str, Sequence[Reply]]
    """By seed as it was written; those that are this node itself are left out."""
    namesakes: Sequence[Reply] = ()
    """From where a cluster knows a node of our id."""
    expect: int = 0
    wanted_cluster: str | None = None
    promise: Proposal | None = None
    is_agreed: bool = False
    everybody: tuple[Heard, ...] = field(init=False)
    """Each node once, we first."""

    def __post_init__(self) -> None:
        found = {self.me.directory_id: self.me}
        for reply in self.replies():
            if reply.heard is not None:
                found.setdefault(reply.heard.directory_id, reply.heard)
        object.__setattr__(self, "everybody", tuple(found.values()))

    def replies(self) -> Iterator[Reply]:
        for replies in self.seeds.values():
            yield from replies

    @property
    def others(self) -> tuple[Heard, ...]:
        return self.everybody[1:]

    @property
    def members(self) -> tuple[Heard, ...]:
        """Who would vote, the lowest id first."""
        return tuple(sorted((h for h in self.everybody if h.is_controller), key=lambda h: h.name))

    def silent(self) -> list[str]:
        """Seeds that did not answer, with the reason.

        All addresses of a name must, in one family at least: a host may have an address of the
        other family that nobody listens on, but an address may also be a node of its own.
        """
        found = []
        for seed, replies in self.seeds.items():
            families = {reply.family: True for reply in replies}
            for reply in replies:
                families[reply.family] &= reply.heard is not None
            if not any(families.values()):
                missing = [f"{r.address} {r.why}".strip() for r in replies if r.heard is None]
                found.append(f"{seed} ({', '.join(missing) or 'no address'})")
        return found

    def named(self) -> tuple[Name, ...] | None:
        """The controllers behind our seeds, ourselves included; None while some are silent."""
        return None if self.silent() else tuple(member.name for member in self.members)


class Wait(Struct, frozen=True):
    """Ask again later; the words are for whoever wonders why nothing happens."""

    why: str


class Refuse(Struct, frozen=True):
    """Never with these settings and this directory."""

    why: str


class Join(Struct, frozen=True):
    """Belong to a cluster that is there."""

    cluster_id: str
    bootstrap: tuple[Address, ...]


class Propose(Struct, frozen=True):
    """Ask all others to promise; the proposal is the one that we promised before, if we did."""

    proposal: Proposal | None
    members: tuple[Heard, ...]


class Found(Struct, frozen=True):
    """Everybody has promised: be a voter of the new cluster."""

    proposal: Proposal


Decision = Wait | Refuse | Join | Propose | Found


def decide(situation: Situation) -> Decision:
    """What a node without a cluster does next."""
    me, promise = situation.me, situation.promise
    refusal = _conflict(situation)
    if refusal is not None:
        return Refuse(refusal)
    if promise is not None and situation.is_agreed:
        return Found(promise)
    formed = [heard for heard in situation.others if heard.cluster_id is not None]
    if formed:
        if promise is not None:
            return Found(promise)
        bootstrap = known_controllers(situation.others)
        if not bootstrap:
            return Wait(f"no seed knows the controllers of cluster {formed[0].cluster_id} yet")
        return Join(formed[0].cluster_id or "", bootstrap)
    silent = situation.silent()
    if me.cluster_id is not None:
        return _decide_without_metadata(situation, me.cluster_id, silent)
    if not me.is_controller:
        return Wait("none of the seeds has a cluster yet, and this node is no controller")
    if not situation.seeds and promise is not None:
        return Refuse(_promised_words(promise) + ": start it with their addresses in seed.nodes")
    if silent:
        return Wait(f"no answer from {', '.join(silent)}")
    return _decide_among_blank(situation)


def _decide_without_metadata(
    situation: Situation, cluster_id: str, silent: Sequence[str]
) -> Decision:
    """The directory belongs to a cluster, and what it knew of that is gone."""
    if not situation.seeds:
        return Refuse(
            f"this directory is of cluster {cluster_id}, its metadata is gone, and no other node "
            "is known: restore the directory from a copy, name nodes of the cluster in seed.nodes, "
            "or start with an empty directory"
        )
    heard = f"hears nothing of it from {', '.join(silent)}" if silent else "all seeds are blank"
    return Wait(f"this node is of cluster {cluster_id}, and {heard}")


def _conflict(situation: Situation) -> str | None:
    """What no waiting would mend."""
    me = situation.me
    refusal = _namesake(situation)
    if refusal is not None:
        return refusal
    ids = sorted({heard.cluster_id for heard in situation.others if heard.cluster_id is not None})
    if len(ids) > 1:
        where = ", ".join(
            f"{h.node_id} in {h.cluster_id}" for h in situation.others if h.cluster_id
        )
        return f"the seeds are of different clusters (node {where}): name nodes of one cluster"
    wanted = situation.wanted_cluster
    if ids and wanted is not None and ids[0] != wanted:
        return _wrong_cluster(ids[0], wanted)
    promise = situation.promise
    if promise is not None and me.name not in promise.names:
        return f"{_promised_words(promise)}, but by another directory: {_START_EMPTY}"
    if ids and promise is not None and ids[0] != promise.cluster_id:
        return (
            f"{_promised_words(promise)}, and the seeds are of cluster {ids[0]}: if the former "
            f"never came to be, start this node with an empty data directory"
        )
    return None


def _namesake(situation: Situation) -> str | None:
    me = situation.me
    for reply in (*situation.replies(), *situation.namesakes):
        other = reply.heard
        if other is not None and other.node_id == me.node_id and other.name != me.name:
            return (
                f"node id {me.node_id} is in use by the node at {reply.address}: give this node "
                f"another node.id, or stop that one"
            )
    return None


def _wrong_cluster(found: str, ours: str) -> str:
    return (
        f"the seeds are of cluster {found}, and this node belongs to {ours}: start it with the "
        f"seeds of its own cluster, or with an empty data directory and without cluster.id"
    )


def return_conflict(situation: Situation) -> str | None:
    """Why a node that has been in a cluster must not go on with these seeds.

    It needs nobody's leave; but seeds that know another cluster, and none that knows ours, show
    that addresses or directories are mixed up.
    """
    me = situation.me
    refusal = _namesake(situation)
    others = [h.cluster_id for h in situation.others if h.cluster_id is not None]
    if refusal is None and others and me.cluster_id not in others:
        return _wrong_cluster(others[0], me.cluster_id or "")
    return refusal


def _decide_among_blank(situation: Situation) -> Decision:
    """All seeds have answered, and none of them has a cluster."""
    members, expect = situation.members, situation.expect
    if not expect:
        for seed, replies in situation.seeds.items():
            names = sorted({r.heard.name for r in replies if r.heard is not None})
            if len(names) > 1:
                return Refuse(
                    f"{seed} leads to {len(names)} nodes: say with bootstrap.expect how many "
                    f"nodes the cluster begins with, or name each of them in seed.nodes"
                )
        if not situation.others:
            return Refuse(
                "seed.nodes names no other node: leave it empty for a cluster of one node, or say "
                "bootstrap.expect=1"
            )
    elif len(members) != expect:
        return Wait(f"found {len(members)} of the {expect} controllers that bootstrap.expect names")
    ids = [member.node_id for member in members]
    for node_id in ids:
        if ids.count(node_id) > 1:
            return Wait(f"two of the seeds have node id {node_id}: give each node its own")
    named = tuple(member.name for member in members)
    for other in situation.others:
        if other.named is None:
            return Wait(f"node {other.node_id} has not heard from all of its seeds yet")
        if other.named != named:
            return Wait(
                f"node {other.node_id} names the controllers {_ids(other.named)}, and this node "
                f"names {_ids(named)}: give both the same nodes in seed.nodes"
            )
    return _decide_by_promises(situation, named)


def _decide_by_promises(situation: Situation, named: tuple[Name, ...]) -> Decision:
    """All are blank and name the same set."""
    me, members, promise = situation.me, situation.members, situation.promise
    lowest = members[0]
    if promise is not None and promise.names != named:
        return Wait(
            f"{_promised_words(promise)}, and now finds {_ids(named)}, or new directories of "
            f"them: {_START_EMPTY}"
        )
    if lowest.name != me.name:
        return Wait(f"node {lowest.node_id} is to propose the cluster")
    if promise is None:
        for other in situation.others:
            if other.promised is not None:
                return Wait(
                    f"node {other.node_id} has promised to found cluster {other.promised}, of "
                    f"which this directory knows nothing: {_START_EMPTY}"
                )
    for member in members:
        if member.controller is None:
            return Wait(f"node {member.node_id} has no CONTROLLER listener")
    return Propose(promise, members)


def objection(
    me: Heard, proposal: Proposal, promise: Proposal | None, wanted_cluster: str | None
) -> str | None:
    """Why a proposal must not be promised; None if it may, and when it was promised already."""
    if me.name not in proposal.names:
        return f"node {me.node_id} with directory {me.directory_id} is not among its voters"
    if promise is not None:
        if promise != proposal:
            return f"node {me.node_id} has promised to found cluster {promise.cluster_id}"
        return None
    if me.named is None:
        return f"node {me.node_id} has not heard from all of its seeds yet"
    if me.named != proposal.names:
        return f"node {me.node_id} names the controllers {_ids(me.named)}"
    if wanted_cluster is not None and wanted_cluster != proposal.cluster_id:
        return f"node {me.node_id} is told to be in cluster {wanted_cluster}"
    return None


def voters_of(members: Sequence[Heard]) -> tuple[Voter, ...]:
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


def known_controllers(others: Sequence[Heard]) -> tuple[Address, ...]:
    """Where members of a cluster say that its voters are."""
    known = {address: None for h in others if h.cluster_id for address in h.controllers}
    return tuple(known)


def _promised_words(promise: Proposal) -> str:
    return (
        f"this node has promised to found cluster {promise.cluster_id} with {_ids(promise.names)}"
    )


def _ids(names: Sequence[Name]) -> str:
    return ", ".join(str(node_id) for node_id, _ in names)
