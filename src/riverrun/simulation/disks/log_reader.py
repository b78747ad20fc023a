"""Reads the logs on a disk without the broker's storage code.

Logs are found by name and read batch by batch, to find the end of the intact part of a log and to
compare the copies of a partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from riverrun.records.batch import HEADER_BYTES, CorruptBatch, crc_matches, read_header
from riverrun.simulation.checks.client_checker import PartitionKey


def logs_on(files: Mapping[str, bytes], data: str) -> dict[PartitionKey, list[tuple[int, bytes]]]:
    """The segments of every partition in a directory, as sorted (base offset, content) pairs."""
    segments: dict[PartitionKey, list[tuple[int, bytes]]] = {}
    for path, content in files.items():
        if path.startswith(data + "/") and path.endswith(".log"):
            directory, _, name = path.removeprefix(data + "/").partition("/")
            topic, _, index = directory.rpartition("-")
            if topic and index.isdigit() and name[:20].isdigit():
                segments.setdefault((topic, int(index)), []).append((int(name[:20]), content))
    return {key: sorted(found) for key, found in segments.items()}


def durable_ends(files: Mapping[str, bytes], data: str) -> dict[PartitionKey, int]:
    """The end offset of the intact part of each partition's log."""
    return {key: intact_end(segments) for key, segments in logs_on(files, data).items()}


def intact_end(segments: Sequence[tuple[int, bytes]]) -> int:
    batches = intact_batches(segments)
    return batches[-1][1] if batches else 0


def intact_batches(segments: Sequence[tuple[int, bytes]]) -> list[tuple[int, int, bytes]]:
    """The batches before the first gap or corruption, as (base offset, next offset, bytes)."""
    expected = 0
    found: list[tuple[int, int, bytes]] = []
    for _, content in segments:
        at = 0
        while len(content) - at >= HEADER_BYTES:
            try:
                header = read_header(content, at)
            except CorruptBatch:
                return found
            is_repaired = at + header.size <= len(content) and header.size >= HEADER_BYTES
            if not is_repaired or header.base_offset != expected:
                return found
            if not crc_matches(content, at, header.size):
                return found
            found.append((expected, header.next_offset, content[at : at + header.size]))
            expected = header.next_offset
            at += header.size
        if at < len(content):
            return found
    return found
