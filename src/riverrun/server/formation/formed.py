"""What a first start ends with."""

from __future__ import annotations

from msgspec import Struct

from riverrun.raft.types import Voter


class Formed(Struct, frozen=True, kw_only=True):
    """The cluster that the node belongs to from now on; the directory says so as well."""

    cluster_id: str
    voters: tuple[Voter, ...] = ()
    """The first voters, when this node is one of them and the cluster is new."""
    bootstrap: tuple[tuple[str, int], ...] = ()
    """Controllers to ask for the leader of the quorum while the metadata names none."""


class FormationError(Exception):
    """The node must not start with these seeds; the words say why, and what to do."""


class FormationStopped(Exception):
    """The node was told to stop before it had a cluster."""
