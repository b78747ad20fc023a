"""How a source declares the schemas of its values: which declarations are safe."""

import json
from pathlib import Path
from typing import Any

import pytest

from riverrun.pipeline.declaration.model import TopicSource
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.errors import DeclarationError
from riverrun.registry.schema import SchemaFormat

PROTO = 'syntax = "proto3"; message Order { %s }'


def avro(*fields: Any) -> str:
    named = [{"name": name, "type": kind, **more} for name, kind, more in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": named})


V1 = avro(("price", "long", {}))
V2 = avro(("price", "long", {}), ("note", "string", {"default": ""}))
BAD = avro(("price", "string", {}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "v1.avsc": V1,
        "v2.avsc": V2,
        "bad.avsc": BAD,
        "none.avsc": "{",
        "v1.proto": PROTO % "int32 id = 1;",
        "v2.proto": PROTO % "int64 id = 1; string note = 2;",
        "bad.proto": PROTO % "string id = 1;",
        "none.proto": "message",
        "v1.json": '{"type": "object", "properties": {"id": {"type": "integer"}}}',
        "list.json": '{"type": "array"}',
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def source_of(folder: Path, *lines: str) -> TopicSource:
    file = folder / "p.toml"
    text = "\n".join(lines)
    file.write_text(f'[sources.s]\ntopic = "orders"\n{text}\n[sinks.out]\ninput = "s"\n')
    source = read_pipeline(file).sources["s"]
    assert isinstance(source, TopicSource)
    return source


def problems(folder: Path, *lines: str) -> str:
    with pytest.raises(DeclarationError) as caught:
        source_of(folder, *lines)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "schema"), [("avro", f"schema = '{V1}'"), ("protobuf", 'schema_file = "v1.proto"')]
)
def test_header_without_declared_ids_is_refused(folder: Path, values: str, schema: str) -> None:
    """An undeclared id must never be decoded with the schema of another writer."""
    shown = problems(folder, f'values = "{values}"', schema, "registry_header = true")
    assert "p.toml:5: sources.s.registry_header: values name the schema of their writer" in shown
    file = {"avro": "v1.avsc", "protobuf": "v1.proto"}[values]
    assert (
        f'Remedy: add schemas = {{ 1 = "{file}" }} with the ids of the registry, or registry = '
        '"http://HOST:8081".'
    ) in shown


def test_largest_declared_id_is_the_readers_schema(folder: Path) -> None:
    lines = ('values = "avro"', 'schemas = { 10 = "v2.avsc", 9 = "v1.avsc" }')
    source = source_of(folder, *lines)
    assert source.schema_ids is not None
    assert [number for number, _ in source.schema_ids.declared] == [9, 10]
    assert source.reader is not None
    assert source.reader.text == V2
    assert not source.follows_registry
    old = source_of(folder, *lines, 'schema_file = "v1.avsc"')
    assert old.reader is not None
    assert old.reader.text == V1


def test_yaml_may_have_numbers_as_keys(folder: Path) -> None:
    file = folder / "p.yaml"
    file.write_text(
        "sources: {s: {topic: t, values: avro, schemas: {1: v1.avsc}}}\nsinks: {out: {input: s}}\n"
    )
    source = read_pipeline(file).sources["s"]
    assert isinstance(source, TopicSource)
    assert source.schema_ids is not None
    assert [number for number, _ in source.schema_ids.declared] == [1]


@pytest.mark.parametrize("values", ["avro", "protobuf", "json"])
def test_registry_implies_the_header_and_the_latest_version(folder: Path, values: str) -> None:
    source = source_of(folder, f'values = "{values}"', 'registry = "http://a:1,http://b:2/x"')
    assert source.schema_ids is not None
    assert source.schema_ids.registry is not None
    assert source.schema_ids.registry.urls == ("http://a:1", "http://b:2/x")
    assert source.schema_ids.subject == "orders-value"
    assert source.follows_registry


def test_declared_reader_is_not_replaced_by_the_registry(folder: Path) -> None:
    registry = 'registry = "http://a:1"'
    for lines in (
        ('values = "avro"', 'schema_file = "v1.avsc"'),
        ('values = "protobuf"', 'schema_file = "v1.proto"', 'message = "Order"'),
        ('values = "json"', 'schema = "id BIGINT"'),
        ('values = "json"', 'schema = "infer"'),
    ):
        assert not source_of(folder, *lines, registry).follows_registry


def test_password_of_the_registry_is_not_shown(folder: Path) -> None:
    source = source_of(
        folder, 'values = "avro"', 'registry = "http://h:1"', 'registry_user_info = "me:secret"'
    )
    assert source.schema_ids is not None
    assert source.schema_ids.registry is not None
    assert source.schema_ids.registry.user_info == "me:secret"
    assert "secret" not in repr(source)
    for line in (
        'registry = "h:1:me:secret@x"',
        'registry = { url = "http://me:secret@x" }',
        'registry = "http://x"\nregistry_user_info = ["me:secret"]',
    ):
        assert "secret" not in problems(folder, 'values = "avro"', line)


def test_protobuf_needs_no_header(folder: Path) -> None:
    source = source_of(folder, 'values = "protobuf"', 'schema_file = "v1.proto"')
    assert source.schema_ids is None
    assert source.reader is not None
    assert source.reader.format is SchemaFormat.PROTOBUF


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (('values = "avro"',), "s.schema: avro values need a schema"),
        (('values = "protobuf"',), "s.schema: protobuf values need a schema"),
        (('values = "avro"', "schemas = {}"), "s.schemas: declares no schema id"),
        (
            ('values = "avro"', 'schemas = { x = "v1.avsc" }'),
            "s.schemas: 'x' is not a schema id",
        ),
        (
            ('values = "avro"', 'schemas = { 2147483648 = "v1.avsc" }'),
            "s.schemas: '2147483648' is not a schema id",
        ),
        (
            ('values = "avro"', 'schemas = { 1 = "missing.avsc" }'),
            "s.schemas.1: missing.avsc: No such file",
        ),
        (
            ('values = "avro"', 'schemas = { 1 = "none.avsc" }'),
            "s.schemas.1: invalid Avro schema",
        ),
        (
            ('values = "avro"', 'schemas = { 1 = "bad.avsc", 2 = "v2.avsc" }'),
            "s.schemas.1: the schema is incompatible with the reader's schema: price: string "
            "cannot be read as long",
        ),
        (
            ('values = "protobuf"', 'schemas = { 1 = "bad.proto", 2 = "v2.proto" }'),
            "s.schemas.1: Order.id: string cannot be int64",
        ),
        (
            ('values = "protobuf"', 'schemas = { 1 = "none.proto" }'),
            "s.schemas.1: invalid Protobuf schema: none.proto:1",
        ),
        (
            ('values = "protobuf"', 'schema_file = "v1.proto"', 'message = "Nope"'),
            "s.schema_file: the Protobuf schema has no message Nope; it has Order",
        ),
        (
            ('values = "json"', 'schemas = { 1 = "list.json" }'),
            "s.schemas: the JSON Schema is not that of an object with properties",
        ),
        (
            ('values = "raw"', 'registry = "http://h:1"'),
            "s.registry: raw values are not decoded",
        ),
        (
            ('values = "avro"', 'registry = "http://h:1"', 'schemas = { 1 = "v1.avsc" }'),
            "s.schemas: conflicts with registry",
        ),
        (
            ('values = "avro"', 'registry = "http://h:1"', "registry_header = false"),
            "s.registry_header: conflicts with registry",
        ),
        (('values = "avro"', 'registry = "h:1"'), "s.registry: 'h:1' is not an address"),
        (
            ('values = "avro"', 'schema_file = "v1.avsc"', 'subject = "x"'),
            "s.subject: needs a registry",
        ),
        (('message = "x"',), "s.message: only Protobuf values have a message"),
        (
            ('topics = ["more"]', 'values = "avro"', 'registry = "http://h:1"'),
            "s.subject: several topics have no common subject",
        ),
    ],
)
def test_mistake_is_reported(folder: Path, lines: tuple[str, ...], message: str) -> None:
    assert f"sources.{message}" in problems(folder, *lines)


def test_json_with_declared_schemas_has_their_columns(folder: Path) -> None:
    source = source_of(folder, 'values = "json"', 'schemas = { 1 = "v1.json" }')
    assert source.reader is not None
    assert source.schema == ""
    assert not source.follows_registry
