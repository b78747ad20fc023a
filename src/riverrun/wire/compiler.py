"""Compiles the layout of a message into Python functions that read and write one version of it.

The generated source is straight-line code: adjacent fields of fixed size share one ``struct`` call,
all others call ``wire/primitives.py``. ``reader_source`` and ``writer_source`` return it as text;
``tools/dump_codec.py`` prints it.

kio's reader is not used for input from the network, because it allocates by the declared length of
an array: thirty bytes could exhaust memory. Tests compare our codec with kio's.

The functions here are pure; ``wire/codec.py`` caches their results.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from riverrun.model.errors import ErrorCode
from riverrun.wire import primitives
from riverrun.wire.layout import Field, MessageModule, defaults
from riverrun.wire.primitives import Buffer, MalformedRequest

Reader = Callable[[Buffer, int, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]
Joiner = Callable[[bytearray, Any, Sequence[bytes]], None]

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
    """A function (buffer, position, end) that returns the message and the position after it.

    ``items_max`` limits the number of items in all arrays of a message together.
    """
    source = _reader_of(module, version, is_counting=items_max is not None)
    reader: Reader = source.run(f"read_{module.MESSAGE.__name__}", "read")
    if items_max is None:
        return reader

    def read(buffer: Buffer, at: int, end: int) -> tuple[Any, int]:
        source.items_left[0] = items_max
        return reader(buffer, at, end)

    return read


def compile_writer(module: MessageModule, version: int, *, name: str | None = None) -> Writer:
    """A function (bytearray, message) that appends the message, or its part of class ``name``."""
    source = _writer_of(module, version)
    writer: Writer = source.run(f"write_{name or module.MESSAGE.__name__}", "write")
    return writer


def compile_joiner(module: MessageModule, version: int, array: str) -> Joiner:
    """A function (bytearray, message, elements) that appends the message.

    ``elements`` are the encoded elements of the array field ``array`` of the message.
    """
    source = _Source(module, version, joined_array=array)
    source.add_all(source.add_writer)
    joiner: Joiner = source.run(f"write_{module.MESSAGE.__name__}", "write")
    return joiner


def reader_source(module: MessageModule, version: int) -> str:
    """The source text of a reader that counts items."""
    return _reader_of(module, version, is_counting=True).text()


def writer_source(module: MessageModule, version: int) -> str:
    """The source text of a writer."""
    return _writer_of(module, version).text()


def _runs(fields: list[Field]) -> Iterator[list[Field]]:
    """Adjacent fields of fixed size together, each other field alone."""
    for is_fixed, group in groupby(fields, lambda field: field.kind in FIXED):
        run = list(group)
        yield from [run] if is_fixed else [[field] for field in run]


def _packed(kind: str, value: str) -> str:
    return f"uuid_bytes({value})" if kind == "uuid" else value


def _reader_of(module: MessageModule, version: int, *, is_counting: bool) -> _Source:
    source = _Source(module, version, is_counting=is_counting)
    source.add_all(source.add_reader)
    return source


def _writer_of(module: MessageModule, version: int) -> _Source:
    source = _Source(module, version)
    source.add_all(source.add_writer)
    return source


class _Constant(NamedTuple):
    value: Any
    text: str


class _Source:
    """The source text for one version of a message, and the names that it uses."""

    def __init__(
        self,
        module: MessageModule,
        version: int,
        *,
        is_counting: bool = False,
        joined_array: str | None = None,
    ) -> None:
        assert module.VERSIONS[0] <= version <= module.VERSIONS[1], f"version {version}"
        self._module = module
        self._version = version
        self._is_flexible = version >= module.FLEXIBLE_FROM
        self._compact = "compact_" if self._is_flexible else ""
        self._lines: list[str] = []
        self._is_counting = is_counting
        self._joined_array = joined_array
        self.items_left = [0]
        self._constants: dict[str, _Constant] = {}
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

    def text(self) -> str:
        """The source with the values of its constants."""
        constants = [f"{name} = {known.text}" for name, known in self._constants.items()]
        return "\n".join([*constants, *self._lines]) + "\n"

    def run(self, name: str, what: str) -> Any:
        code = compile("\n".join(self._lines), f"<{what} {name} v{self._version}>", "exec")
        names = {**self._names, **{name: known.value for name, known in self._constants.items()}}
        exec(code, names)
        return names[name]

    def add_all(self, add: Callable[[str], None]) -> None:
        """Add every class that this version uses, nested classes first."""
        done: dict[str, bool] = {}

        def visit(name: str) -> None:
            if name not in done:
                done[name] = True
                for field in self._fields(name):
                    kind = field.kind.removeprefix("[]")
                    if kind in self._module.LAYOUTS:
                        visit(kind)
                add(name)

        visit(self._module.MESSAGE.__name__)

    def _fields(self, name: str) -> list[Field]:
        layout = self._module.LAYOUTS[name]
        return [field for field in layout if field.first <= self._version <= field.last]

    def _plain_fields(self, name: str) -> list[Field]:
        return [field for field in self._fields(name) if field.tag is None]

    def _tagged_fields(self, name: str) -> list[Field]:
        fields = [field for field in self._fields(name) if field.tag is not None]
        return sorted(fields, key=lambda field: field.tag or 0)

    def _constant(self, value: Any, text: str) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants[name] = _Constant(value, text)
        return name

    def _default(self, name: str, field: str) -> str:
        known = defaults(getattr(self._module, name))
        assert field in known, f"{name}.{field} is tagged and has no default"
        return self._constant(known[field], repr(known[field]))

    def _bytes_min(self, kind: str, *, is_nullable: bool = False) -> int:
        """The minimum size of a value, which bounds the number of items in a frame."""
        if kind.startswith("[]"):
            return 1 if self._is_flexible else 4
        if kind in FIXED:
            return struct.calcsize(">" + FIXED[kind])
        if kind in ("string", "bytes"):
            return 1 if self._is_flexible else {"string": 2, "bytes": 4}[kind]
        if is_nullable:
            return 1
        fields = self._plain_fields(kind)
        total = sum(self._bytes_min(field.kind, is_nullable=field.is_nullable) for field in fields)
        return total + (1 if self._is_flexible else 0)

    # Readers

    def add_reader(self, name: str) -> None:
        add = self._lines.append
        self._names[name] = getattr(self._module, name)
        add(f"def read_{name}(buffer, at, end):")
        fields = self._plain_fields(name)
        for run in _runs(fields):
            if run[0].kind in FIXED:
                self._read_fixed(run)
            else:
                self._read_one(run[0], "    ")
        tagged = self._tagged_fields(name)
        if tagged:
            self._read_tagged(name, tagged)
        elif self._is_flexible:
            add("    at = skip_tagged_fields(buffer, at, end) if buffer[at] else at + 1")
        arguments = ", ".join(f"{field.name}=f_{field.name}" for field in fields + tagged)
        add(f"    return {name}({arguments}), at")

    def _read_fixed(self, run: list[Field]) -> None:
        shape = struct.Struct(">" + "".join(FIXED[field.kind] for field in run))
        unpack = self._constant(shape.unpack_from, f"struct.Struct({shape.format!r}).unpack_from")
        targets = "".join(f"f_{field.name}, " for field in run)
        self._lines.append(f"    {targets}= {unpack}(buffer, at)")
        self._lines.append(f"    at += {shape.size}")
        for field in run:
            if field.kind in ("uuid", "error_code"):
                self._lines.append(f"    f_{field.name} = {field.kind}(f_{field.name})")

    def _read_one(self, field: Field, indent: str) -> None:
        name, kind = field.name, field.kind
        add = self._lines.append
        if kind.startswith("[]"):
            self._read_array(field, indent)
        elif kind in ("string", "bytes"):
            function = self._compact + ("text" if kind == "string" else "bytes")
            null = "_or_null" if field.is_nullable else ""
            add(f"{indent}f_{name}, at = read_{function}{null}(buffer, at, end)")
        elif kind in FIXED:
            size = struct.calcsize(">" + FIXED[kind])
            add(f"{indent}f_{name}, = unpack_from('>{FIXED[kind]}', buffer, at)")
            add(f"{indent}at += {size}")
            if kind in ("uuid", "error_code"):
                add(f"{indent}f_{name} = {kind}(f_{name})")
        elif field.is_nullable:  # KIP-893: one byte before the struct
            add(f"{indent}f_{name}, at = None, at + 1")
            add(f"{indent}if buffer[at - 1] < 128:")
            add(f"{indent}    f_{name}, at = read_{kind}(buffer, at, end)")
        else:
            add(f"{indent}f_{name}, at = read_{kind}(buffer, at, end)")

    def _read_array(self, field: Field, indent: str) -> None:
        name, kind = field.name, field.kind
        item = kind[2:]
        add = self._lines.append
        item_bytes = self._bytes_min(item)
        assert item_bytes > 0, f"{name} has items of no size"
        add(f"{indent}count, at = read_{self._compact}count(buffer, at, end, {item_bytes})")
        add(f"{indent}if count < 0:")
        if field.is_nullable:
            add(f"{indent}    f_{name} = None")
            add(f"{indent}else:")
            indent += "    "
        else:
            add(f"{indent}    raise MalformedRequest('null for {name}')")
        if self._is_counting:
            add(f"{indent}items_left[0] -= count")
            add(f"{indent}if items_left[0] < 0:")
            add(f"{indent}    raise MalformedRequest('too many items')")
        if item in FIXED and item not in ("uuid", "error_code"):
            add(f"{indent}f_{name} = unpack_from(f'>{{count}}{FIXED[item]}', buffer, at)")
            add(f"{indent}at += count * {item_bytes}")
            return
        add(f"{indent}items = []")
        add(f"{indent}for _ in range(count):")
        self._read_one(Field("item", item, 0, 0), indent + "    ")
        add(f"{indent}    items.append(f_item)")
        add(f"{indent}f_{name} = tuple(items)")

    def _read_tagged(self, name: str, fields: list[Field]) -> None:
        add = self._lines.append
        for field in fields:
            add(f"    f_{field.name} = {self._default(name, field.name)}")
        add("    tags, at = read_tag_count(buffer, at)")
        add("    for _ in range(tags):")
        add("        tag, at = read_varint(buffer, at)")
        add("        size, at = read_varint(buffer, at)")
        add("        stop = at + size")
        add("        if stop > end:")
        add("            raise MalformedRequest('tagged field beyond the end')")
        for field in fields:
            add(f"        if tag == {field.tag}:")
            self._read_one(field, "            ")
            add("            if at != stop:")
            add(f"                raise MalformedRequest('wrong size of {field.name}')")
        add("        at = stop")

    # Writers

    def add_writer(self, name: str) -> None:
        add = self._lines.append
        is_joined = self._joined_array is not None and name == self._module.MESSAGE.__name__
        add(f"def write_{name}(out, message{', elements' if is_joined else ''}):")
        fields = self._plain_fields(name)
        for run in _runs(fields):
            if run[0].kind in FIXED:
                shape = struct.Struct(">" + "".join(FIXED[field.kind] for field in run))
                values = ", ".join(_packed(field.kind, f"message.{field.name}") for field in run)
                pack = self._constant(shape.pack, f"struct.Struct({shape.format!r}).pack")
                add(f"    out += {pack}({values})")
            elif is_joined and run[0].name == self._joined_array:
                add(f"    write_{self._compact}count(out, len(elements))")
                add("    out += b''.join(elements)")
            else:
                self._write_one(run[0], f"message.{run[0].name}", "out", "    ")
        tagged = self._tagged_fields(name)
        if tagged:
            self._write_tagged(name, tagged)
        elif self._is_flexible:
            add("    out.append(0)")
        elif not fields:
            add("    pass")

    def _write_one(self, field: Field, value: str, out: str, indent: str) -> None:
        kind = field.kind
        add = self._lines.append
        if kind.startswith("[]"):
            self._write_array(field, value, out, indent)
        elif kind in ("string", "bytes"):
            function = self._compact + ("text" if kind == "string" else "bytes")
            null = "_or_null" if field.is_nullable else ""
            add(f"{indent}write_{function}{null}({out}, {value})")
        elif kind in FIXED:
            add(f"{indent}{out} += pack('>{FIXED[kind]}', {_packed(kind, value)})")
        elif field.is_nullable:
            add(f"{indent}if {value} is None:")
            add(f"{indent}    {out}.append(255)")
            add(f"{indent}else:")
            add(f"{indent}    {out}.append(1)")
            add(f"{indent}    write_{kind}({out}, {value})")
        else:
            add(f"{indent}write_{kind}({out}, {value})")

    def _write_array(self, field: Field, value: str, out: str, indent: str) -> None:
        kind = field.kind
        item = kind[2:]
        add = self._lines.append
        if field.is_nullable:
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

    def _write_tagged(self, name: str, fields: list[Field]) -> None:
        add = self._lines.append
        add("    tags, count = bytearray(), 0")
        for field in fields:
            add(f"    if message.{field.name} != {self._default(name, field.name)}:")
            add("        value = bytearray()")
            self._write_one(field, f"message.{field.name}", "value", "        ")
            add(f"        write_varint(tags, {field.tag})")
            add("        write_varint(tags, len(value))")
            add("        tags += value")
            add("        count += 1")
        add("    write_varint(out, count)")
        add("    out += tags")
