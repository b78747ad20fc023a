"""Splits concatenated JSON objects that arrive in pieces: ``{"a":1}{"a":2}``."""

from __future__ import annotations

import re
from typing import Final

OBJECT_BYTES_MAX: Final = 16 * 1024 * 1024
DEPTH_MAX: Final = 500
"""Decoders are recursive."""
_OUTSIDE: Final = re.compile(rb'["{}\[\]]')
_INSIDE: Final = re.compile(rb'["\\]')
_SPACE: Final = b" \t\r\n"
_QUOTE, _ESCAPE = ord('"'), ord("\\")
_OPENING: Final = b"{["
_CLOSING: Final = b"}]"


class JsonStreamInvalid(ValueError):
    """The input is not a sequence of JSON objects. The message is for the sender."""


class JsonSplitter:
    """Finds the ends of objects by their brackets. The objects themselves are not checked."""

    def __init__(self, object_bytes_max: int = OBJECT_BYTES_MAX) -> None:
        self._object_bytes_max = object_bytes_max
        self._buffer = bytearray()
        self._at = 0
        """Everything before is scanned."""
        self._depth = 0
        self._is_text = False

    def feed(self, data: bytes) -> list[bytes]:
        """The objects that are complete now. Raises ``JsonStreamInvalid``."""
        self._buffer += data
        found: list[bytes] = []
        while (end := self._end()) is not None:
            found.append(bytes(self._buffer[:end]))
            del self._buffer[:end]
            self._at = 0
        if len(self._buffer) > self._object_bytes_max:
            raise JsonStreamInvalid(f"a record has more than {self._object_bytes_max} bytes")
        return found

    def close(self) -> None:
        """Raise ``JsonStreamInvalid`` if the input ends within an object."""
        if self._depth or self._buffer.strip(_SPACE):
            raise JsonStreamInvalid("the last record is incomplete")

    def _end(self) -> int | None:
        """The end of the first object; None if it is not complete."""
        if not self._depth:
            self._skip_space()
        while True:
            pattern = _INSIDE if self._is_text else _OUTSIDE
            found = pattern.search(self._buffer, self._at)
            if found is None:
                self._at = len(self._buffer)
                return None
            place = found.start()
            sign = self._buffer[place]
            if self._is_text:
                if sign == _ESCAPE and place + 1 >= len(self._buffer):
                    self._at = place  # the escaped character has not arrived
                    return None
                self._is_text = sign != _QUOTE
                self._at = place + (2 if sign == _ESCAPE else 1)
                continue
            self._at = place + 1
            if sign == _QUOTE:
                self._is_text = True
            elif sign in _OPENING:
                self._depth += 1
                if self._depth > DEPTH_MAX:
                    raise JsonStreamInvalid(f"a record is nested more than {DEPTH_MAX} deep")
            elif sign in _CLOSING:
                self._depth -= 1
                if self._depth == 0:
                    return self._at

    def _skip_space(self) -> None:
        start = 0
        while start < len(self._buffer) and self._buffer[start] in _SPACE:
            start += 1
        del self._buffer[:start]
        self._at = 0
        if self._buffer and self._buffer[0] != ord("{"):
            shown = bytes(self._buffer[:20]).decode(errors="replace")
            raise JsonStreamInvalid(f"expected a JSON object, not {shown!r}")
