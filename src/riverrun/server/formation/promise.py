"""The promise to form a cluster, as a file.

It is durable before the response that confirms it, and deleted when the directory belongs to the
cluster. All calls block on the disk. ``riverrun up`` uses this module too, so it imports little.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.model.names import META_PROPERTIES
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files, OsFiles, read_whole, write_atomically
from riverrun.ports.randomness import Randomness
from riverrun.raft.types import Voter
from riverrun.server.formation.decision import LISTENER, ClusterProposal, FormationError
from riverrun.storage.checkpoints import encode_uuid, parse_uuid
from riverrun.storage.identity import DirectoryIdentity

PROMISE = "formation.json"
VERSION = 1


class Promise(Struct, frozen=True, kw_only=True):
    """``is_agreed``: all voters are known to have promised."""

    proposal: ClusterProposal
    is_agreed: bool = False

    def encode(self) -> bytes:
        voters = [
            {
                "id": voter.id,
                "directory.id": encode_uuid(voter.directory_id) if voter.directory_id else None,
                "host": voter.endpoints[LISTENER][0],
                "port": voter.endpoints[LISTENER][1],
            }
            for voter in self.proposal.voters
        ]
        content = {
            "version": VERSION,
            "cluster.id": self.proposal.cluster_id,
            "proposed.ms": self.proposal.proposed_ms,
            "agreed": self.is_agreed,
            "voters": voters,
        }
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Promise:
        content = json.loads(data)
        voters = tuple(
            Voter(
                id=NodeId(int(entry["id"])),
                directory_id=parse_uuid(entry["directory.id"]),
                endpoints={LISTENER: (str(entry["host"]), int(entry["port"]))},
            )
            for entry in content["voters"]
        )
        proposal = ClusterProposal(
            cluster_id=str(content["cluster.id"]),
            proposed_ms=int(content["proposed.ms"]),
            voters=voters,
        )
        return cls(proposal=proposal, is_agreed=bool(content["agreed"]))


def read_promise(files: Files, directory: str) -> Promise | None:
    path = os.path.join(directory, PROMISE)
    if not files.exists(path):
        return None
    try:
        return Promise.parse(read_whole(files, path))
    except (ValueError, KeyError, TypeError) as error:
        raise FormationError(
            f"{path} is corrupt ({error!r}): if the cluster that it names was never formed, start "
            f"all of its nodes with empty data directories"
        ) from None


def write_promise(files: Files, directory: str, promise: Promise, *, sync: bool = True) -> None:
    write_atomically(files, os.path.join(directory, PROMISE), promise.encode(), sync=sync)


def promise_for_all(
    voters: Sequence[tuple[int, str, int]],
    directories: Sequence[Path],
    *,
    cluster_id: str,
    clock: Clock,
    randomness: Randomness,
) -> None:
    """Write the promises of all voters, whose blank directories are on this machine.

    The nodes then need no requests to each other: once every promise is durable, all have promised.
    """
    files = OsFiles()
    first_voters = tuple(
        Voter(
            id=NodeId(node_id), directory_id=randomness.uuid(), endpoints={LISTENER: (host, port)}
        )
        for node_id, host, port in voters
    )
    proposal = ClusterProposal(
        cluster_id=cluster_id, proposed_ms=clock.now_ms(), voters=first_voters
    )
    for voter, directory in zip(first_voters, directories, strict=True):
        assert voter.directory_id is not None
        files.make_directory(str(directory))
        identity = DirectoryIdentity(
            node_id=voter.id, directory_id=voter.directory_id, cluster_id=None
        )
        write_atomically(files, str(directory / META_PROPERTIES), identity.encode())
    for directory in directories:
        write_promise(files, str(directory), Promise(proposal=proposal))
    for directory in directories:
        # Not synced: if a power cut loses this, the nodes ask each other.
        agreed = Promise(proposal=proposal, is_agreed=True)
        write_promise(files, str(directory), agreed, sync=False)


def withdraw(directories: Sequence[Path]) -> None:
    """Undo ``promise_for_all``, unless a node has already used its promise."""
    if not all(_is_untouched(directory) for directory in directories):
        return
    for directory in directories:
        for path in directory.iterdir():
            path.unlink()
        with contextlib.suppress(OSError):  # it may be a mount point
            directory.rmdir()


def _is_untouched(directory: Path) -> bool:
    names = sorted(path.name for path in directory.iterdir())
    if not {*names} <= {PROMISE, META_PROPERTIES, ".lock"} or PROMISE not in names:
        return False
    return "cluster.id" not in (directory / META_PROPERTIES).read_text()
