"""Readers and writers of messages, made from their layouts as Python source, once for each version.

The source is straight: neighbours of fixed size share one ``struct`` call, everything else calls
``wire/primitives.py``. kio's own reader is not used on what comes from the network, for it
allocates by the declared length of an array: thirty bytes can stop the process. Tests hold the two
equal.

``compile_reader`` and ``compile_writer`` are pure; ``wire/codec.py`` keeps what they made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from riverrun.model.errors import ErrorCode
from riverrun.wire import primitives
from riverrun.wire.layout import Field, MessageModule, defaults
from riverrun.wire.primitives import Buffer, MalformedRequest

Reader = Callable[[Buffer, int, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

FIXED = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "uuid": "16s",
}
NO_UUID = bytes(16)


def _uuid(raw: bytes) -> UUID | None:
    return None if raw == NO_UUID else UUID(bytes=raw)


def _uuid_bytes(value: UUID | None) -> bytes:
    return NO_UUID if value is None else value.bytes


def compile_reader(module: MessageModule, version: int, *, items_max: int | None = None) -> Reader:
    """A function (buffer, position, end) that gives the message and the position behind it.

    With ``items_max``, the arrays of a message together may hold no more than that.
    """
    source = _Source(module, version, is_counting=items_max is not None)
    source.add_all(source.reader_of)
    reader: Reader = source.run(f"read_{module.MESSAGE.__name__}", "read")
    if items_max is None:
        return reader

    def read(buffer: Buffer, at: int, end: int) -> tuple[Any, int]:
        source.items_left[0] = items_max
        return reader(buffer, at, end)

    return read


def compile_writer(module: MessageModule, version: int) -> Writer:
    """A function (bytearray, message) that appends the message."""
    source = _Source(module, version)
    source.add_all(source.writer_of)
    writer: Writer = source.run(f"write_{module.MESSAGE.__name__}", "write")
    return writer


class _Source:
    """The source of one message at one version, and the names that it refers to."""

    def __init__(self, module: MessageModule, version: int, *, is_counting: bool = False) -> None:
        assert module.VERSIONS[0] <= version <= module.VERSIONS[1], f"version {version}"
        self._module = module
        self._version = version
        self._is_flexible = version >= module.FLEXIBLE_FROM
        self._compact = "compact_" if self._is_flexible else ""
        self._lines: list[str] = []
        self._is_counting = is_counting
        self.items_left = [0]
        self._names: dict[str, Any] = {
            **vars(primitives),
            "MalformedRequest": MalformedRequest,
            "error_code": ErrorCode,
            "uuid": _uuid,
            "uuid_bytes": _uuid_bytes,
            "pack": struct.pack,
            "unpack_from": struct.unpack_from,
            "items_left": self.items_left,
        }

    def run(self, name: str, what: str) -> Any:
        code = compile("\n".join(self._lines), f"<{what} {name} v{self._version}>", "exec")
        exec(code, self._names)
        return self._names[name]

    def add_all(self, add: Callable[[str], None]) -> None:
        """Emit every class that this version reaches; nested ones stand before their users."""
        done: dict[str, bool] = {}

        def visit(name: str) -> None:
            if name not in done:
                done[name] = True
                for row in self._rows(name):
                    kind = row.kind.removeprefix("[]")
                    if kind in self._module.LAYOUTS:
                        visit(kind)
                add(name)

        visit(self._module.MESSAGE.__name__)

    def _rows(self, name: str) -> list[Field]:
        return [row for row in self._module.LAYOUTS[name] if row.first <= self._version <= row.last]

    def _plain_rows(self, name: str) -> list[Field]:
        return [row for row in self._rows(name) if row.tag is None]

    def _tagged_rows(self, name: str) -> list[Field]:
        rows = [row for row in self._rows(name) if row.tag is not None]
        return sorted(rows, key=lambda row: row.tag or 0)

    def _constant(self, value: Any) -> str:
        name = f"constant_{len(self._names)}"
        self._names[name] = value
        return name

    def _default(self, name: str, field: str) -> str:
        known = defaults(getattr(self._module, name))
        assert field in known, f"{name}.{field} is tagged and has no default"
        return self._constant(known[field])

    def _bytes_min(self, kind: str, may_be_null: bool) -> int:
        """The fewest bytes that a value of this kind takes; bounds how many there can be."""
        if kind.startswith("[]"):
            return 1 if self._is_flexible else 4
        if kind in FIXED:
            return struct.calcsize(">" + FIXED[kind])
        if kind in ("string", "bytes"):
            return 1 if self._is_flexible else {"string": 2, "bytes": 4}[kind]
        if may_be_null:
            return 1
        total = sum(self._bytes_min(row.kind, row.is_nullable) for row in self._plain_rows(kind))
        return total + (1 if self._is_flexible else 0)

    # Readers

    def reader_of(self, name: str) -> None:
        add = self._lines.append
        self._names[name] = getattr(self._module, name)
        add(f"def read_{name}(buffer, at, end):")
        rows = self._plain_rows(name)
        place = 0
        while place < len(rows):
            run = []
            while place < len(rows) and rows[place].kind in FIXED:
                run.append(rows[place])
                place += 1
            if run:
                self._read_fixed(run)
            else:
                self._read_one(rows[place], "    ")
                place += 1
        tagged = self._tagged_rows(name)
        if tagged:
            self._read_tagged(name, tagged)
        elif self._is_flexible:
            add("    at = skip_tagged_fields(buffer, at, end) if buffer[at] else at + 1")
        arguments = ", ".join(f"{row.name}=f_{row.name}" for row in rows + tagged)
        add(f"    return {name}({arguments}), at")

    def _read_fixed(self, run: list[Field]) -> None:
        shape = struct.Struct(">" + "".join(FIXED[row.kind] for row in run))
        unpack = self._constant(shape.unpack_from)
        targets = "".join(f"f_{row.name}, " for row in run)
        self._lines.append(f"    {targets}= {unpack}(buffer, at)")
        self._lines.append(f"    at += {shape.size}")
        for row in run:
            if row.kind in ("uuid", "error_code"):
                self._lines.append(f"    f_{row.name} = {row.kind}(f_{row.name})")

    def _read_one(self, row: Field, indent: str) -> None:
        field, kind, may_be_null = row.name, row.kind, row.is_nullable
        add = self._lines.append
        if kind.startswith("[]"):
            self._read_array(row, indent)
        elif kind in ("string", "bytes"):
            function = self._compact + ("text" if kind == "string" else "bytes")
            null = "_or_null" if may_be_null else ""
            add(f"{indent}f_{field}, at = read_{function}{null}(buffer, at, end)")
        elif kind in FIXED:
            size = struct.calcsize(">" + FIXED[kind])
            add(f"{indent}f_{field}, = unpack_from('>{FIXED[kind]}', buffer, at)")
            add(f"{indent}at += {size}")
            if kind in ("uuid", "error_code"):
                add(f"{indent}f_{field} = {kind}(f_{field})")
        elif may_be_null:  # KIP-893: a byte says whether the struct is there
            add(f"{indent}f_{field}, at = None, at + 1")
            add(f"{indent}if buffer[at - 1] < 128:")
            add(f"{indent}    f_{field}, at = read_{kind}(buffer, at, end)")
        else:
            add(f"{indent}f_{field}, at = read_{kind}(buffer, at, end)")

    def _read_array(self, row: Field, indent: str) -> None:
        field, kind, may_be_null = row.name, row.kind, row.is_nullable
        item = kind[2:]
        add = self._lines.append
        item_bytes = self._bytes_min(item, False)
        assert item_bytes > 0, f"{field} has items of no size"
        add(f"{indent}count, at = read_{self._compact}count(buffer, at, end, {item_bytes})")
        if self._is_counting:
            add(f"{indent}items_left[0] -= count")
            add(f"{indent}if items_left[0] < 0:")
            add(f"{indent}    raise MalformedRequest('too many items')")
        add(f"{indent}if count < 0:")
        if may_be_null:
            add(f"{indent}    f_{field} = None")
            add(f"{indent}else:")
            indent += "    "
        else:
            add(f"{indent}    raise MalformedRequest('null for {field}')")
        if item in FIXED and item not in ("uuid", "error_code"):
            add(f"{indent}f_{field} = unpack_from(f'>{{count}}{FIXED[item]}', buffer, at)")
            add(f"{indent}at += count * {item_bytes}")
            return
        add(f"{indent}items = []")
        add(f"{indent}for _ in range(count):")
        self._read_one(Field("item", item, 0, 0), indent + "    ")
        add(f"{indent}    items.append(f_item)")
        add(f"{indent}f_{field} = tuple(items)")

    def _read_tagged(self, name: str, rows: list[Field]) -> None:
        add = self._lines.append
        for row in rows:
            add(f"    f_{row.name} = {self._default(name, row.name)}")
        add("    tags, at = read_tag_count(buffer, at)")
        add("    for _ in range(tags):")
        add("        tag, at = read_varint(buffer, at)")
        add("        size, at = read_varint(buffer, at)")
        add("        stop = at + size")
        add("        if stop > end:")
        add("            raise MalformedRequest('tagged field beyond the end')")
        for row in rows:
            add(f"        if tag == {row.tag}:")
            self._read_one(row, "            ")
            add("            if at != stop:")
            add(f"                raise MalformedRequest('{row.name} is not of its declared size')")
        add("        at = stop")

    # Writers

    def writer_of(self, name: str) -> None:
        add = self._lines.append
        add(f"def write_{name}(out, message):")
        rows = self._plain_rows(name)
        place = 0
        while place < len(rows):
            run = []
            while place < len(rows) and rows[place].kind in FIXED:
                run.append(rows[place])
                place += 1
            if run:
                shape = struct.Struct(">" + "".join(FIXED[row.kind] for row in run))
                values = ", ".join(self._packed(row.kind, f"message.{row.name}") for row in run)
                add(f"    out += {self._constant(shape.pack)}({values})")
            else:
                self._write_one(rows[place], f"message.{rows[place].name}", "out", "    ")
                place += 1
        tagged = self._tagged_rows(name)
        if tagged:
            self._write_tagged(name, tagged)
        elif self._is_flexible:
            add("    out.append(0)")
        elif not rows:
            add("    pass")

    def _packed(self, kind: str, value: str) -> str:
        return f"uuid_bytes({value})" if kind == "uuid" else value

    def _write_one(self, row: Field, value: str, out: str, indent: str) -> None:
        kind, may_be_null = row.kind, row.is_nullable
        add = self._lines.append
        if kind.startswith("[]"):
            self._write_array(row, value, out, indent)
        elif kind in ("string", "bytes"):
            function = self._compact + ("text" if kind == "string" else "bytes")
            null = "_or_null" if may_be_null else ""
            add(f"{indent}write_{function}{null}({out}, {value})")
        elif kind in FIXED:
            add(f"{indent}{out} += pack('>{FIXED[kind]}', {self._packed(kind, value)})")
        elif may_be_null:
            add(f"{indent}if {value} is None:")
            add(f"{indent}    {out}.append(255)")
            add(f"{indent}else:")
            add(f"{indent}    {out}.append(1)")
            add(f"{indent}    write_{kind}({out}, {value})")
        else:
            add(f"{indent}write_{kind}({out}, {value})")

    def _write_array(self, row: Field, value: str, out: str, indent: str) -> None:
        kind, may_be_null = row.kind, row.is_nullable
        item = kind[2:]
        add = self._lines.append
        if may_be_null:
            add(f"{indent}if {value} is None:")
            add(f"{indent}    write_{self._compact}count({out}, -1)")
            add(f"{indent}else:")
            indent += "    "
        add(f"{indent}write_{self._compact}count({out}, len({value}))")
        if item in FIXED and item != "uuid":
            add(f"{indent}{out} += pack(f'>{{len({value})}}{FIXED[item]}', *{value})")
            return
        add(f"{indent}for item in {value}:")
        self._write_one(Field("item", item, 0, 0), "item", out, indent + "    ")

    def _write_tagged(self, name: str, rows: list[Field]) -> None:
        add = self._lines.append
        add("    tags, count = bytearray(), 0")
        for row in rows:
            add(f"    if message.{row.name} != {self._default(name, row.name)}:")
            add("        value = bytearray()")
            self._write_one(row, f"message.{row.name}", "value", "        ")
            add(f"        write_varint(tags, {row.tag})")
            add("        write_varint(tags, len(value))")
            add("        tags += value")
            add("        count += 1")
        add("    write_varint(out, count)")
        add("    out += tags")
