"""Decodes Avro, Protobuf and JSON Schema values in Python workers.

The driver sends a ``Decoding`` to the workers. A worker process lives longer than a task, so it
keeps decoders and the schemas of registries for the next batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from riverrun.pipeline.declaration.model import SchemaIds
from riverrun.pipeline.declaration.value_schema import FORMATS
from riverrun.pipeline.sources.avro import AvroReader
from riverrun.pipeline.sources.protobuf import ProtobufReader
from riverrun.registry.avro import self_contained
from riverrun.registry.catalog import DeclaredCatalog, RegistryCatalog, SchemaCatalog
from riverrun.registry.client import RegistryClient
from riverrun.registry.codecs import CodecCache
from riverrun.registry.errors import UndecodableValue, UnusableSchema
from riverrun.registry.framing import HEADER_BYTES, schema_id_of
from riverrun.registry.json_schema import JsonValidator
from riverrun.registry.protobuf import ProtobufSchema
from riverrun.registry.schema import RegisteredSchema, SchemaFormat

DECODERS_MAX: Final = 100
"""Per process: one for each source and version of its reader's schema."""
CATALOGS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the values of a source are decoded."""

    values: str
    reader: RegisteredSchema | None
    """None for JSON, whose columns Spark finds by name."""
    message: str | None
    ids: SchemaIds | None


class ValueReader(Protocol):
    """Decodes values of one writer's schema."""

    def read(self, data: bytes) -> Any:
        """Raises UndecodableValue."""
        ...


class ValueDecoder(Protocol):
    def prepare(self, heads: Sequence[bytes]) -> None:
        """Look up the schemas that these values start with. Raises RegistryUnavailable."""
        ...

    def decode(self, data: bytes) -> Any:
        """Raises UndecodableValue, UnusableSchema and RegistryUnavailable."""
        ...


class PlainDecoder:
    """Decodes values that were all written with the reader's schema and have no header."""

    def __init__(self, reader: ValueReader) -> None:
        self._reader = reader

    def prepare(self, heads: Sequence[bytes]) -> None:
        """There is nothing to look up."""

    def decode(self, data: bytes) -> Any:
        return self._reader.read(data)


class HeaderDecoder:
    """Decodes values by the schema id in their header."""

    def __init__(self, readers: CodecCache[ValueReader]) -> None:
        self._readers = readers

    def prepare(self, heads: Sequence[bytes]) -> None:
        self._readers.prepare(heads)

    def decode(self, data: bytes) -> Any:
        return self._readers.get(schema_id_of(data)).read(data)


class JsonSchemaReader:
    """Checks values of one JSON Schema and removes their header."""

    def __init__(self, validator: JsonValidator) -> None:
        self._validator = validator

    def read(self, data: bytes) -> bytes:
        self._validator.check(data)
        return data[HEADER_BYTES:]


@lru_cache(maxsize=DECODERS_MAX)
def open_decoder(decoding: Decoding) -> ValueDecoder:
    """The decoder of this process. Raises ValueError if the reader's schema is invalid."""
    ids = decoding.ids
    if ids is None:
        return PlainDecoder(_reader(decoding, None, "the schema"))
    wanted = FORMATS[decoding.values]

    def build(writer: RegisteredSchema, what: str) -> ValueReader:
        if writer.format is not wanted:
            raise UnusableSchema(f"{what} is a schema of {writer.format}, not of {wanted}")
        return _reader(decoding, writer, what)

    return HeaderDecoder(CodecCache(open_catalog(ids), build))


@lru_cache(maxsize=CATALOGS_MAX)
def open_catalog(ids: SchemaIds) -> SchemaCatalog:
    """The schemas of this process: declared ones, or those of a registry."""
    if ids.registry is None:
        return DeclaredCatalog(dict(ids.declared))
    return RegistryCatalog(RegistryClient(ids.registry))


def _reader(decoding: Decoding, writer: RegisteredSchema | None, what: str) -> ValueReader:
    reader = decoding.reader
    if decoding.values == "json":
        assert writer is not None, "JSON without a header is parsed by Spark"
        return JsonSchemaReader(JsonValidator(writer, what))
    assert reader is not None, "Avro and Protobuf values are resolved to a reader's schema"
    if reader.format is SchemaFormat.PROTOBUF:
        message = ProtobufSchema(reader).message_named(decoding.message)
        return ProtobufReader(message, writer, what)
    return AvroReader(self_contained(reader), writer, what)


class DecodeBatches:
    """Appends the decoded value and the reason to each Arrow batch, for ``mapInArrow``.

    :param data: name of the column with the bytes of the value.
    :param out: the columns of the result; the last two are the value and the reason.
    """

    def __init__(self, decoding: Decoding, data: str, out: StructType) -> None:
        self._decoding = decoding
        self._data = data
        self._out = out

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = open_decoder(self._decoding)
        arrow = to_arrow_schema(self._out, timezone="UTC")
        for batch in batches:
            data = batch.column(batch.schema.get_field_index(self._data))
            heads = pc.unique(pc.binary_slice(data, 0, HEADER_BYTES)).drop_null()
            decoder.prepare(heads.to_pylist())
            values, reasons = decode_all(decoder, data.to_pylist())
            column, reasons = fit_to_column(values, reasons, arrow.field(-2).type)
            arrays = [*batch.columns, column, pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=arrow.names)


def decode_all(
    decoder: ValueDecoder, data: Sequence[bytes | None]
) -> tuple[list[Any], list[str | None]]:
    """The value and the reason of each record. Exactly one of them is None unless data is null."""
    values: list[Any] = []
    reasons: list[str | None] = []
    for one in data:
        value, reason = None, None
        if one is not None:
            try:
                value = decoder.decode(one)
            except (UndecodableValue, UnusableSchema) as error:
                reason = str(error)
        values.append(value)
        reasons.append(reason)
    return values, reasons


def fit_to_column(
    values: Sequence[Any], reasons: Sequence[str | None], type_: pa.DataType
) -> tuple[pa.Array, list[str | None]]:
    """The values as a column, and a reason for each value that is not in it.

    A value may match its schema and still not fit, such as an ``int`` of more than 32 bits.
    """
    try:
        return pa.array(values, type_), list(reasons)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass  # find the values that do not fit one by one
    kept: list[Any] = []
    all_reasons: list[str | None] = []
    for value, reason in zip(values, reasons, strict=True):
        misfit = None if value is None else _misfit(value, type_)
        kept.append(None if misfit else value)
        all_reasons.append(misfit or reason)
    return pa.array(kept, type_), all_reasons


def _misfit(value: Any, type_: pa.DataType) -> str | None:
    try:
        pa.array([value], type_)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        return f"the value does not fit its column: {error}"
    return None
