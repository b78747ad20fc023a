"""Damage to what lies on a disk, and reading disks as a stranger would: without the broker's code.

Logs are found by their names and read batch by batch, so that it can be said up to where a log is
whole, and whether two copies of it are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from riverrun.records.batch import HEADER_BYTES, CorruptBatch, crc_matches, read_header
from riverrun.simulation.checks.client_checker import PartitionKey


def logs_on(files: Mapping[str, bytes], data: str) -> dict[PartitionKey, list[tuple[int, bytes]]]:
    """The segments of every partition below a directory, as base offset and content, in order."""
    segments: dict[PartitionKey, list[tuple[int, bytes]]] = {}
    for path, content in files.items():
        if path.startswith(data + "/") and path.endswith(".log"):
            directory, _, name = path.removeprefix(data + "/").partition("/")
            topic, _, index = directory.rpartition("-")
            if topic and index.isdigit() and name[:20].isdigit():
                segments.setdefault((topic, int(index)), []).append((int(name[:20]), content))
    return {key: sorted(found) for key, found in segments.items()}


def surely_kept(files: Mapping[str, bytes], data: str) -> dict[PartitionKey, int]:
    """Up to which offset each partition is whole."""
    return {key: whole_until(segments) for key, segments in logs_on(files, data).items()}


def whole_until(segments: Sequence[tuple[int, bytes]]) -> int:
    batches = whole_batches(segments)
    return batches[-1][1] if batches else 0


def whole_batches(segments: Sequence[tuple[int, bytes]]) -> list[tuple[int, int, bytes]]:
    """The batches from the beginning to the first hole or damage: offset, next offset, bytes."""
    expected = 0
    found: list[tuple[int, int, bytes]] = []
    for _, content in segments:
        at = 0
        while len(content) - at >= HEADER_BYTES:
            try:
                header = read_header(content, at)
            except CorruptBatch:
                return found
            is_whole = at + header.size <= len(content) and header.size >= HEADER_BYTES
            if not is_whole or header.base_offset != expected:
                return found
            if not crc_matches(content, at, header.size):
                return found
            found.append((expected, header.next_offset, content[at : at + header.size]))
            expected = header.next_offset
            at += header.size
        if at < len(content):
            return found
    return found
