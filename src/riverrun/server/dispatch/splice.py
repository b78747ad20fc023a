"""Put an answer of Metadata or DescribeConfigs together from items that are written already.

An answer is a head, the number of items, the items, and a tail whose length the version fixes. So
one item can be cut out of an answer that holds nothing else, and many can be put into one that
holds none. Tests hold this equal to writing the whole answer at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Self

from msgspec import Struct

from riverrun.wire.apis import APIS, ApiKey
from riverrun.wire.codec import encode_response
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse
from riverrun.wire.messages.metadata_response import MetadataResponse

Answer = MetadataResponse | DescribeConfigsResponse


class Splice(Struct, frozen=True, kw_only=True):
    """How answers of one version are cut and joined."""

    api: ApiKey
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
        return cls._of(ApiKey.METADATA, version, MetadataResponse(brokers=(), topics=()), tail)

    @classmethod
    @cache
    def of_configs(cls, version: int) -> Self:
        tail = int(APIS[ApiKey.DESCRIBE_CONFIGS].is_flexible(version))
        return cls._of(
            ApiKey.DESCRIBE_CONFIGS,
            version,
            DescribeConfigsResponse(throttle_time_ms=0, results=()),
            tail,
        )

    @classmethod
    def _of(cls, api: ApiKey, version: int, empty: Answer, tail_bytes: int) -> Self:
        count_bytes = 1 if APIS[api].is_flexible(version) else 4
        size = len(encode_response(api, version, empty))
        return cls(
            api=api,
            version=version,
            head_bytes=size - tail_bytes - count_bytes,
            count_bytes=count_bytes,
            tail_bytes=tail_bytes,
        )

    def element(self, message: Answer) -> bytes:
        """The bytes of the only item of an answer that holds nothing else of changing length."""
        written = encode_response(self.api, self.version, message)
        return written[self.head_bytes + self.count_bytes : len(written) - self.tail_bytes]

    def join(self, frame: bytes, elements: Sequence[bytes]) -> bytes:
        """An answer without items, with items put in."""
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
