"""Protobuf schemas with their imports, and values decoded as messages of them.

A registry may offer a schema as a descriptor. Otherwise its text is compiled with protoc, which
``grpcio-tools`` contains.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from riverrun.registry.builtin_protos import BUILTIN_PROTOS
from riverrun.registry.errors import UndecodableValue
from riverrun.registry.schema import NamedReference, RegisteredSchema, SchemaFormat

COMPILE_SECONDS_MAX: Final = 60.0
REASON_CHARACTERS_MAX: Final = 300
MAIN_FILE: Final = "riverrun_schema.proto"
_WELL_KNOWN = re.compile(r"google/(protobuf|type)/[a-z_]+\.proto")
"""Files that a schema may import without a reference. Our Python packages contain them."""
_LOG_LINE = re.compile(r"^WARNING:|^[IW]\d{4} |: warning:")
"""Lines of protoc's output that are not errors."""


class ProtobufSchema:
    """The messages of one schema. Raises ValueError if the schema is invalid."""

    def __init__(self, schema: RegisteredSchema) -> None:
        pool = descriptor_pool.DescriptorPool()
        files = _descriptors(schema)
        try:
            for file in files:
                _add_with_well_known(pool, file)
            self._file = pool.FindFileByName(files[-1].name)
        except (TypeError, KeyError, ValueError) as error:
            # The first line names the file or the type that is missing.
            text = str(error).strip("'\"")[:REASON_CHARACTERS_MAX]
            raise ValueError(f"invalid Protobuf schema: {text}") from None
        self._names = [message.name for message in files[-1].message_type]

    def message_named(self, name: str | None) -> Descriptor:
        """A message by its name, with or without its package; None for the first one."""
        if not self._names:
            raise ValueError("the Protobuf schema has no message")
        plain = self._names[0] if name is None else name
        package = f"{self._file.package}." if self._file.package else ""
        outer, *inner = plain.removeprefix(package).split(".")
        found = self._file.message_types_by_name.get(outer)
        for part in inner:
            found = None if found is None else found.nested_types_by_name.get(part)
        if found is None:
            known = ", ".join(package + one for one in self._names)
            raise ValueError(f"the Protobuf schema has no message {plain}; it has {known}")
        return found

    def message_at(self, indexes: Sequence[int], wanted: str | None, what: str) -> Descriptor:
        """The message that a value names by its indexes.

        Clients disagree whether the entries of map fields count as nested messages. If that
        matters, only ``wanted``, the full name of the expected message, can decide.

        Raises UndecodableValue.
        """
        first, *inner = indexes
        if not 0 <= first < len(self._names):
            raise UndecodableValue(f"{what} has no message with the indexes {list(indexes)}")
        candidates = [self._file.message_types_by_name[self._names[first]]]
        for index in inner:
            candidates = [found for outer in candidates for found in _nested(outer, index)]
        names = list(dict.fromkeys(found.full_name for found in candidates))
        if not names:
            raise UndecodableValue(f"{what} has no message with the indexes {list(indexes)}")
        if len(names) > 1 and wanted not in names:
            raise UndecodableValue(
                f"the value names a message of {what} by the indexes {list(indexes)}, which "
                f"means {' or '.join(names)}, depending on the client that wrote it"
            )
        full_name = wanted if len(names) > 1 else names[0]
        return next(found for found in candidates if found.full_name == full_name)


def decode_message(data: bytes, start: int, descriptor: Descriptor, what: str) -> Message:
    """The message in ``data[start:]``. Raises UndecodableValue."""
    try:
        return message_factory.GetMessageClass(descriptor).FromString(data[start:])
    except DecodeError as error:
        if _ends_early(data, start):
            text = f"the value is truncated: it ends inside its Protobuf data of {what}"
        else:
            text = f"the value does not match {what}: {str(error)[:REASON_CHARACTERS_MAX]}"
        raise UndecodableValue(text) from None


def compile_file(path: Path) -> RegisteredSchema:
    """Compile a file whose imports are relative to its folder. Raises ValueError and OSError."""
    text = path.read_text()
    return _as_schema(text, _run_protoc(path.name, [path.absolute().parent]))


def compile_text(text: str, imports: Mapping[str, str]) -> RegisteredSchema:
    """Compile a text with the texts of its imports. Raises ValueError."""
    with tempfile.TemporaryDirectory(prefix="riverrun-proto-") as name:
        folder = Path(name)
        _write_files(folder, {**imports, MAIN_FILE: text})
        return _as_schema(text, _run_protoc(MAIN_FILE, [folder]))


def _write_files(folder: Path, texts: Mapping[str, str]) -> None:
    for file, text in texts.items():
        place = PurePosixPath(file)
        if place.is_absolute() or ".." in place.parts:
            raise ValueError(f"the import {file!r} is not a relative path")
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)


def _as_schema(text: str, files: Sequence[descriptor_pb2.FileDescriptorProto]) -> RegisteredSchema:
    imports = tuple(
        NamedReference(
            file.name,
            RegisteredSchema(SchemaFormat.PROTOBUF, "", descriptor=file.SerializeToString()),
        )
        for file in files[:-1]
    )
    descriptor = files[-1].SerializeToString()
    return RegisteredSchema(SchemaFormat.PROTOBUF, text, imports, descriptor)


def _run_protoc(file: str, folders: Sequence[Path]) -> list[descriptor_pb2.FileDescriptorProto]:
    """The file and its imports, each after its own imports.

    protoc runs in its own process, because it prints its errors and cannot be interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="riverrun-protoc-") as name:
        output = Path(name) / "descriptors"
        builtin = Path(name) / "builtin"
        _write_files(builtin, BUILTIN_PROTOS)
        paths = [f"--proto_path={one}" for one in (*folders, builtin, *_include_folders())]
        arguments = ["--include_imports", f"--descriptor_set_out={output}", file]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", *paths, *arguments],
                capture_output=True,
                text=True,
                timeout=COMPILE_SECONDS_MAX,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            text = f"protoc took more than {COMPILE_SECONDS_MAX:g} seconds"
            raise ValueError(f"invalid Protobuf schema: {text}") from None
        if done.returncode:
            text = _protoc_error(done.stderr, folders)
            raise ValueError(f"invalid Protobuf schema: {text}")
        return list(descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file)


def _include_folders() -> list[Path]:
    """The folders with google/protobuf and google/type."""
    found: list[Path] = []
    for package, inner in (("grpc_tools", "_proto"), ("google.type", "../..")):
        spec = find_spec(package)
        for place in [] if spec is None else spec.submodule_search_locations or []:
            found.append((Path(place) / inner).resolve())
    return found


def _protoc_error(text: str, folders: Sequence[Path]) -> str:
    joined = "; ".join(line for line in text.splitlines() if not _LOG_LINE.search(line))
    for folder in folders:
        joined = joined.replace(f"{folder}/", "")
    return (joined or "protoc failed")[:REASON_CHARACTERS_MAX]


def _descriptors(schema: RegisteredSchema) -> list[descriptor_pb2.FileDescriptorProto]:
    """The descriptors of the references and, last, of the schema itself."""
    references = list(schema.dependencies())
    all_schemas = [*(reference.schema for reference in references), schema]
    if any(one.descriptor is None for one in all_schemas):
        texts = {reference.name: reference.schema.text for reference in references}
        return _descriptors(compile_text(schema.text, texts))
    names = [*(reference.name for reference in references), MAIN_FILE]
    files: list[descriptor_pb2.FileDescriptorProto] = []
    for name, one in zip(names, all_schemas, strict=True):
        assert one.descriptor is not None, "schemas without a descriptor are compiled"
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(one.descriptor)
        except DecodeError as error:
            raise ValueError(f"invalid Protobuf schema: {error}") from None
        file.name = name
        files.append(file)
    return files


def _add_with_well_known(
    pool: descriptor_pool.DescriptorPool, file: descriptor_pb2.FileDescriptorProto
) -> None:
    """Add a file to a pool, after the well-known files that it imports."""
    for name in file.dependency:
        if not _is_in(pool, name):
            for inner in _well_known(name):
                _add_with_well_known(pool, inner)
    if not _is_in(pool, file.name):
        pool.Add(file)


def _well_known(name: str) -> list[descriptor_pb2.FileDescriptorProto]:
    """A file that schemas import without a reference, after its own imports."""
    if name in BUILTIN_PROTOS:
        return _run_protoc(name, [])
    if not _WELL_KNOWN.fullmatch(name):
        return []
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        found = importlib.import_module(module)
    except ImportError:
        raise ValueError(f"{name} is not available") from None
    return [descriptor_pb2.FileDescriptorProto.FromString(found.DESCRIPTOR.serialized_pb)]


def _is_in(pool: descriptor_pool.DescriptorPool, name: str) -> bool:
    try:
        pool.FindFileByName(name)
    except KeyError:
        return False
    return True


def _nested(outer: Descriptor, index: int) -> list[Descriptor]:
    """The nested message at an index, with and without counting the entries of map fields."""
    everything = list(outer.nested_types)
    messages = [one for one in everything if not one.GetOptions().map_entry]
    found = [part[index] for part in (everything, messages) if 0 <= index < len(part)]
    return [one for one in found if not one.GetOptions().map_entry]


def _ends_early(data: bytes, start: int) -> bool:
    """Whether the fields of a message continue after the end of the data."""
    at = start
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(data, at)
                at += size
            case 5:
                at += 4
            case _:
                return False
    return at > len(data)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number and the position after it, which is beyond the end if it is cut off."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, len(data) + 1
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
    return value, at
