"""Records of many kinds: nulls, headers, empty values and growing sizes."""

from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...]
    timestamp: int


TIMESTAMP = 1_750_000_000_000


def records(count: int = 120) -> list[Sent]:
    return [
        Sent(
            key=None if number % 3 == 0 and number % 7 != 1 else b"key-%d" % number,
            value=_value(number),
            headers=(("number", b"%d" % number), ("empty", b"")) if number % 2 else (),
            timestamp=TIMESTAMP + number * 1000,
        )
        for number in range(count)
    ]


def _value(number: int) -> bytes | None:
    if number % 7 == 1:
        return None
    return b"" if number % 7 == 2 else b"value-%d " % number * (number % 50)
