"""The first records of a metadata log, and the check that a directory's log may be led by this
node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from riverrun.metadata.quorum import MetadataError, Voter
from riverrun.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    FeatureLevelRecord,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

FEATURES: Final = {
    METADATA_VERSION_FEATURE: METADATA_VERSION,  # first: it determines all versions
    "eligible.leader.replicas.version": 1,
    "transaction.version": 2,
    "group.version": 1,
}


def first_records() -> list[Record]:
    """The features of a new cluster. The active controller adds the settings that they require."""
    return [FeatureLevelRecord(name=name, feature_level=level) for name, level in FEATURES.items()]


def check_sole_voter(known: Sequence[Voter], me: Voter) -> None:
    """Raises ``MetadataError`` if there are other voters, or if another directory of this node
    votes."""
    names = ", ".join(str(voter.id) for voter in known)
    if [voter.id for voter in known] != [me.id]:
        raise MetadataError(
            f"the metadata of this directory is voted on by {names}, and this is node {me.id}, "
            "started alone: start it with the seeds of its cluster"
        )
    if known[0].directory_id not in (None, me.directory_id):
        raise MetadataError(
            f"the metadata belongs to directory {known[0].directory_id}, and this directory is "
            f"{me.directory_id}: meta.properties and __cluster_metadata-0 are of different nodes"
        )
