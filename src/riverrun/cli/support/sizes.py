"""Sizes on the command line: ``50MB``, ``500 kB/s``, ``64MiB``."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(i?)b?(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def parse_bytes(text: str) -> int | None:
    """Bytes; a fraction is rounded. None if the text is not a size. kB, MB and GB are powers of
    1000, KiB, MiB and GiB of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    number, unit, binary = found.groups()
    return round(float(number) * (1024.0 if binary else 1000.0) ** _POWERS[unit.lower()])
