"""A checkpoint of the flushed offset of the metadata log.

A voter that lost synced records must not vote from its log, because acknowledged records may be
gone. The number is written after each fsync, before anything is published, but is not synced
itself. After a kill it is exact; after a power loss it can only be too low. So it proves a loss,
and shows from which offset the log may have been read from memory alone.

A power loss may mix the digits of two numbers. The result would name an offset that was never
reached (114 and 122 give 124) and a loss that did not happen. Hence the checksum.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Final

from crc32c import crc32c

from riverrun.model.ids import Offset
from riverrun.ports.files import Files

NAME: Final = "flushed-offset-checkpoint"
_TEXT: Final = b"1\n1\n__cluster_metadata 0 %020d\n"
_CHECKSUM: Final = b"%08x\n"
_FORM = re.compile(rb"(1\n1\n__cluster_metadata 0 (\d{20})\n)([0-9a-f]{8})\n")


class FlushedOffset:
    """One number in a file of fixed size, overwritten in place: a write to the page cache, never a
    wait."""

    def __init__(self, files: Files, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        self._file = files.open(self._path, create=True)

    def read(self) -> Offset:
        """Returns 0 if nothing is known."""
        match = _FORM.fullmatch(self._file.read_at(0, 256))
        if match is None or int(match[3], 16) != crc32c(match[1]):
            return Offset(0)
        return Offset(int(match[2]))

    def missing(self, end: Offset) -> str | None:
        """The error text for a log that ends below the flushed offset; None if it does not."""
        durable = self.read()
        if durable <= end:
            return None
        return (
            f"the metadata log ends at offset {end}, but it was flushed up to {durable}: "
            "acknowledged metadata is missing. Restore the directory from a backup. To continue "
            f"with the remaining records, delete {self._path}"
        )

    def lower(self, offset: Offset) -> None:
        """Called before the log is truncated. Durable, because otherwise a power loss would look
        like lost records. Blocks on the disk."""
        if self.read() > offset:
            self._file.write_at(0, _text(offset))
            self._file.sync()

    def write(self, offset: Offset) -> None:
        with contextlib.suppress(OSError):  # without space it stays too low, which is safe
            self._file.write_at(0, _text(offset))

    def close(self) -> None:
        self._file.close()


def _text(offset: Offset) -> bytes:
    text = _TEXT % offset
    return text + _CHECKSUM % crc32c(text)
