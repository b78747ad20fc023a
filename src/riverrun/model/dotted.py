"""Dotted names of settings, which TOML reads as tables within tables."""

from collections.abc import Mapping


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
    """Why a file is no TOML; what surprises most is that ``a.b`` and ``a.b.c`` exclude each
    other.
    """
    return f"not TOML: {error}; names that go on where another ends need quotes"
