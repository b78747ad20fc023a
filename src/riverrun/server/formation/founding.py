"""The first files of a node that founds a cluster, or joins one. All calls block on the disk."""

from __future__ import annotations

import os

from riverrun.metadata.image import Image
from riverrun.metadata.snapshot import BOOTSTRAP, snapshot_batches
from riverrun.ports.files import Files, write_atomically
from riverrun.server.formation.decision import Proposal
from riverrun.server.formation.promise import PROMISE
from riverrun.storage.directory import LogDirectory


def found(files: Files, directory: LogDirectory, proposal: Proposal) -> None:
    """Write the first snapshot, the same on every voter, and belong to the cluster from then on."""
    folder = directory.make_metadata()
    path = os.path.join(folder, BOOTSTRAP.name)
    if not files.exists(path):
        image = Image(timestamp=proposal.proposed_ms)
        content = b"".join(snapshot_batches(image, proposal.voters, proposal.proposed_ms))
        write_atomically(files, path, content)
        files.sync_directory(directory.path)
    join(files, directory, proposal.cluster_id)


def join(files: Files, directory: LogDirectory, cluster_id: str) -> None:
    """Belong to a cluster for ever."""
    directory.adopt_cluster(cluster_id)
    path = os.path.join(directory.path, PROMISE)
    if files.exists(path):
        files.unlink(path)
