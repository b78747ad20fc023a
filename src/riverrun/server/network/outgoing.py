"""How much of the answers lies in memory because its clients do not read it.

Records on their way to a client are held until its socket takes them. A hundred consumers that ask
for 50 MB each and stop reading would hold 5 GB; so the more is unsent, the smaller are the answers
of further fetches. They never become useless: each gets a fair part of the room that is left, and a
batch at least.
"""

from __future__ import annotations

from typing import Final

from riverrun.model.settings import MiB

PART: Final = 4
"""One answer takes at most this part of the room that is left."""
ANSWER_BYTES_MIN: Final = MiB


class Outgoing:
    """Bytes that connections hold back, and what that leaves for the next answer."""

    __slots__ = ("bytes_max", "unsent_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.unsent_bytes = 0

    def answer_bytes_max(self) -> int:
        return max((self.bytes_max - self.unsent_bytes) // PART, ANSWER_BYTES_MIN)
