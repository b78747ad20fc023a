"""Frames between a node and its worker process: a length and a pickled value.

The node sends one ``JobRequest`` at a time. The worker responds with one result for each segment,
and with ``JobEnd``. Both ends run the same code, so pickle is safe here.
"""

from __future__ import annotations

import pickle
import struct
from typing import IO, Final

from msgspec import Struct

from riverrun.storage.cleaning.compaction import CompactionResult, CompactionTask
from riverrun.storage.digests.digest_task import DigestBucket, DigestTask
from riverrun.storage.scrubbing.scrub import ScrubResult, ScrubTask

_LENGTH: Final = struct.Struct(">I")


class JobRequest(Struct, frozen=True, kw_only=True):
    task: CompactionTask | ScrubTask | DigestTask
    bytes_per_second_max: int
    """Limit of bytes read; 0 for none."""


class JobEnd(Struct, frozen=True, kw_only=True):
    """The last frame of a job."""

    error: Exception | None
    is_last: bool
    """The worker takes no more jobs and ends."""


Frame = JobRequest | CompactionResult | ScrubResult | DigestBucket | JobEnd


def send(stream: IO[bytes], frame: Frame) -> None:
    data = pickle.dumps(frame)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Frame | None:
    """The next frame; None if the other end is closed."""
    start = stream.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(start)
    data = stream.read(size)
    if len(data) < size:
        return None
    frame: Frame = pickle.loads(data)
    return frame
