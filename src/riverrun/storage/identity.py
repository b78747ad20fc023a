"""The identity of a data directory: ``meta.properties`` version 1, as in Kafka."""

from __future__ import annotations

import os
from collections.abc import Mapping
from uuid import UUID

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.model.names import META_PROPERTIES
from riverrun.ports.files import Files, read_whole, write_atomically
from riverrun.ports.randomness import Randomness
from riverrun.storage.checkpoints import encode_uuid, parse_uuid


class DirectoryError(Exception):
    """The data directory cannot be used. The message names the remedy."""


class DirectoryIdentity(Struct, frozen=True, kw_only=True):
    node_id: NodeId
    directory_id: UUID
    cluster_id: str | None

    def encode(self) -> bytes:
        lines = ["#", "version=1", f"node.id={self.node_id}"]
        lines.append(f"directory.id={encode_uuid(self.directory_id)}")
        if self.cluster_id is not None:
            lines.append(f"cluster.id={self.cluster_id}")
        return "\n".join([*lines, ""]).encode()


def write_identity(files: Files, directory: str, identity: DirectoryIdentity) -> None:
    write_atomically(files, os.path.join(directory, META_PROPERTIES), identity.encode())


def establish_identity(
    files: Files, directory: str, node_id: NodeId, randomness: Randomness
) -> DirectoryIdentity:
    """Read the identity, or create one in an empty directory. Raises ``DirectoryError``."""
    path = os.path.join(directory, META_PROPERTIES)
    if not files.exists(path):
        _refuse_without_identity(files, directory)
        identity = DirectoryIdentity(
            node_id=node_id, directory_id=randomness.uuid(), cluster_id=None
        )
        write_identity(files, directory, identity)
        return identity
    identity = _parse(path, read_whole(files, path))
    if identity.node_id != node_id:
        raise DirectoryError(
            f"{directory} belongs to node {identity.node_id}, not to node {node_id}: start it with "
            f"node.id={identity.node_id}, or give node {node_id} a data directory of its own"
        )
    return identity


def _refuse_without_identity(files: Files, directory: str) -> None:
    for name in files.list_directory(directory):
        topic, _, partition = name.rpartition("-")
        if topic and partition.isdigit() and files.is_directory(os.path.join(directory, name)):
            raise DirectoryError(
                f"{directory} holds partitions ({name}) but no {META_PROPERTIES}, so "
                f"their owner is unknown: restore that file, or use an empty directory"
            )


def _parse(path: str, data: bytes) -> DirectoryIdentity:
    found = _properties(path, data)
    version = found.get("version", "0")
    if version != "1":
        raise DirectoryError(
            f"{path} has version {version}, but this release reads version 1: it was written by "
            f"{'a newer release' if version > '1' else 'Apache Kafka with ZooKeeper'}; use "
            f"that, or another data directory"
        )
    try:
        return DirectoryIdentity(
            node_id=NodeId(int(found["node.id"])),
            directory_id=parse_uuid(found["directory.id"]),
            cluster_id=found.get("cluster.id"),
        )
    except (KeyError, ValueError) as error:
        raise DirectoryError(
            f"{path} is damaged ({error!r}): restore it from the node's settings, or remove the "
            f"whole directory if its data is not needed"
        ) from None


def _properties(path: str, data: bytes) -> Mapping[str, str]:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise DirectoryError(f"{path} is damaged: it is not text") from None
    pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith("#"))
    return {key.strip(): value.strip().replace("\\:", ":") for key, _, value in pairs}
