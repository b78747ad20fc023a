"""The source of a generated class, shared by the generators of messages and of records."""

from __future__ import annotations

from collections.abc import Sequence


def class_lines(name: str, fields: Sequence[tuple[str, str, str | None]]) -> list[str]:
    """A subclass of ``wire.layout.Message`` with these (name, type, default) fields."""
    lines = [f"class {name}(Message):", "    __slots__ = ("]
    lines += [f'        "{field}",' for field, _, _ in fields] + ["    )"]
    if not fields:
        return [lines[0], "    __slots__ = ()"]
    lines += ["", "    def __init__(", "        self,", "        *,"]
    for field, type_text, default in fields:
        given = f" = {default}" if default is not None else ""
        lines.append(f"        {field}: {type_text}{given},")
    lines.append("    ) -> None:")
    return lines + [f"        self.{field}: Final = {field}" for field, _, _ in fields]
