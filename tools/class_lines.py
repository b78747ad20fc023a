"""The source of generated classes and layouts, shared by the generators of messages and records."""

from __future__ import annotations

from collections.abc import Sequence


def class_lines(name: str, fields: Sequence[tuple[str, str, str | None]]) -> list[str]:
    """A frozen struct with these (name, type, default) fields."""
    lines = [f"class {name}(Struct, frozen=True, kw_only=True):"]
    for field, type_text, default in fields:
        given = f" = {default}" if default is not None else ""
        lines.append(f"    {field}: {type_text}{given}")
    return lines if fields else [*lines, "    pass"]


def field_text(
    name: str, kind: str, is_nullable: bool, tag: int | None, first: int, last: int
) -> str:
    """The call that makes a ``wire.layout.Field``."""
    options = ", is_nullable=True" if is_nullable else ""
    options += f", tag={tag}" if tag is not None else ""
    return f'Field("{name}", "{kind}", {first}, {last}{options}),'
