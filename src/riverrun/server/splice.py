"""Put a Metadata answer together from topics that are written already.

An answer is a head, the number of topics, the topics, and a tail whose length the version fixes. So
one topic can be cut out of an answer that holds nothing else, and many can be put into one that
holds none. A test holds this equal to writing the whole answer at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from riverrun.wire.apis import APIS, ApiKey
from riverrun.wire.codec import encode_response
from riverrun.wire.messages.metadata_response import MetadataResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    """How answers of one version are cut and joined."""

    version: int
    head_bytes: int
    count_bytes: int
    tail_bytes: int

    @classmethod
    @cache
    def of_metadata(cls, version: int) -> Self:
        is_flexible = APIS[ApiKey.METADATA].is_flexible(version)
        # Operations on the cluster in versions 8 to 10, the error code from 13 on, tagged fields.
        tail = (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0) + is_flexible
        count = 1 if is_flexible else 4
        empty = encode_response(ApiKey.METADATA, version, MetadataResponse(brokers=(), topics=()))
        return cls(
            version=version,
            head_bytes=len(empty) - tail - count,
            count_bytes=count,
            tail_bytes=tail,
        )

    def element(self, message: MetadataResponse) -> bytes:
        """The bytes of the only topic of an answer without brokers."""
        written = encode_response(ApiKey.METADATA, self.version, message)
        return written[self.head_bytes + self.count_bytes : len(written) - self.tail_bytes]

    def join(self, frame: bytes, elements: Sequence[bytes]) -> bytes:
        """An answer without topics, with topics put in."""
        end = len(frame) - self.tail_bytes
        head, tail = frame[: end - self.count_bytes], frame[end:]
        return b"".join((head, self._count(len(elements)), *elements, tail))

    def _count(self, count: int) -> bytes:
        if self.count_bytes == 4:
            return struct.pack(">i", count)
        number = count + 1  # compact arrays count from one, zero is null
        out = bytearray()
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
        return bytes(out)
