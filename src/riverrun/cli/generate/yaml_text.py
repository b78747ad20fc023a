"""Writes values as YAML: mappings, lists, texts and numbers. A core dependency is not worth it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_/.-]*")
_RESERVED: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
INDENT: Final = "  "


def yaml_text(value: object) -> str:
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    """The lines of a mapping or a list that is not empty; others are on one line."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _entry(f"{_scalar(key)}:", inner)
    elif _is_list(value):
        for inner in value:  # type: ignore[attr-defined]
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (INDENT + line for line in rest)
    else:
        yield _scalar(value)


def _entry(key: str, value: object) -> Iterator[str]:
    if (isinstance(value, Mapping) and value) or _is_list(value):
        yield key
        yield from (INDENT + line for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value)


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    if isinstance(value, str) and '"' in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    # JSON is YAML, also for empty mappings and lists.
    return json.dumps(value, ensure_ascii=False)
