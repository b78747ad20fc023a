"""Kafka's checkpoint files of offsets by partition, and ``partition.metadata``."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from uuid import UUID

from msgspec import Struct

from riverrun.model.ids import Offset, PartitionIndex, TopicName, TopicPartition
from riverrun.ports.files import Files, read_whole, write_atomically

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"

_VERSION = 0


class CorruptCheckpoint(Exception):
    """A checkpoint file that cannot be parsed."""


def encode_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    lines = [f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items())]
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def parse_offsets(data: bytes) -> dict[TopicPartition, Offset]:
    """Parse a checkpoint of offsets. Raises ``CorruptCheckpoint``."""
    try:
        version, count, *lines = data.decode().split("\n")
        if int(version) != _VERSION:
            raise CorruptCheckpoint(f"unknown version {version}")
        found = {}
        for line in lines:
            if line:
                topic, partition, offset = line.split(" ")
                key = TopicPartition(TopicName(topic), PartitionIndex(int(partition)))
                found[key] = Offset(int(offset))
        if len(found) != int(count):
            raise CorruptCheckpoint(f"{count} entries declared, {len(found)} found")
    except ValueError as error:
        raise CorruptCheckpoint(f"not a checkpoint of offsets: {error}") from None
    return found


def read_offsets(files: Files, directory: str, name: str) -> dict[TopicPartition, Offset]:
    """Read a checkpoint of a directory; empty if the file does not exist."""
    try:
        return parse_offsets(read_whole(files, os.path.join(directory, name)))
    except FileNotFoundError:
        return {}


def write_offsets(
    files: Files, directory: str, name: str, offsets: Mapping[TopicPartition, Offset]
) -> None:
    write_atomically(files, os.path.join(directory, name), encode_offsets(offsets))


class Checkpoint(Struct, frozen=True):
    """Offsets of all partitions at one moment, by file name; ``write`` waits for the disk."""

    files: Files
    path: str
    offsets: Mapping[str, Mapping[TopicPartition, Offset]]

    def write(self) -> None:
        for name, offsets in self.offsets.items():
            write_offsets(self.files, self.path, name, offsets)


def encode_uuid(value: UUID) -> str:
    """Kafka's text form of an id."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def parse_uuid(text: str) -> UUID:
    """Raises ValueError."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def parse_partition_metadata(data: bytes) -> UUID:
    """Parse the topic id. Raises ``CorruptCheckpoint``."""
    try:
        pairs = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
        if pairs["version"] != "0":
            raise CorruptCheckpoint(f"unknown version {pairs['version']}")
        return parse_uuid(pairs["topic_id"])
    except (ValueError, KeyError) as error:
        raise CorruptCheckpoint(f"not a partition.metadata file: {error}") from None
