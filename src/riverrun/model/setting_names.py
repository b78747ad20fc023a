"""Names of settings in files and flags: dotted names in TOML, and names with other units."""

from collections.abc import Mapping
from typing import TypeVar

Text = TypeVar("Text")

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.ms": ("log.roll.hours",),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
}
"""The finest unit first. It wins over coarser units in the same source."""


def family(name: str) -> tuple[str, ...]:
    """A name and its synonyms, the finest unit first."""
    for fine, coarse in SYNONYMS.items():
        if name == fine or name in coarse:
            return (fine, *coarse)
    return (name,)


def overridden(weaker: Mapping[str, Text], stronger: Mapping[str, Text]) -> dict[str, Text]:
    """Merge two sources of settings; the stronger one wins.

    A setting of the stronger source hides all synonyms in the weaker one. Otherwise a flag in hours
    would lose to milliseconds in the file.
    """
    hidden = {synonym for name in stronger for synonym in family(name)}
    kept = {name: text for name, text in weaker.items() if name not in hidden}
    return kept | dict(stronger)


def flattened(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """``{"num": {"partitions": 3}}`` as ``{"num.partitions": 3}``; lists become ``a,b``."""
    values: dict[str, object] = {}
    for key, value in tree.items():
        match value:
            case dict():
                values |= flattened(value, f"{prefix}{key}.")
            case list():
                values[prefix + key] = ",".join(str(item) for item in value)
            case _:
                values[prefix + key] = value
    return values


def not_toml(error: ValueError) -> str:
    """Why a file is not TOML. The usual cause is that ``a.b`` and ``a.b.c`` exclude each other."""
    return f"not TOML: {error}; quote names that extend another name"
