"""The schema of a topic's values: columns, or a reader's schema and where writers' schemas are.

A value that starts with a schema id was written with the schema of that id. Reading it with another
schema can give wrong values without an error, so a source that expects ids must say where their
schemas are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from riverrun.pipeline.declaration.model import INFER, SchemaIds
from riverrun.pipeline.declaration.section import Section
from riverrun.pipeline.declaration.sql_text import declared_columns
from riverrun.registry.address import RegistryAddress, parse_registry
from riverrun.registry.framing import SCHEMA_ID_MAX
from riverrun.registry.schema import RegisteredSchema, SchemaFormat

FORMATS: Final = {
    "avro": SchemaFormat.AVRO,
    "json": SchemaFormat.JSON,
    "protobuf": SchemaFormat.PROTOBUF,
}
LIBRARIES: Final = {"avro": "fastavro", "json": "jsonschema_rs", "protobuf": "grpc_tools"}
EXAMPLES: Final = {"avro": "v1.avsc", "json": "v1.json", "protobuf": "v1.proto"}
INSTALL: Final = "pip install 'riverrun[registry]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchemaFields:
    """The fields of a source that describe its values."""

    text: str = ""
    reader: RegisteredSchema | None = None
    message: str | None = None
    ids: SchemaIds | None = None


def read_value_schema(
    section: Section, values: str, folder: Path, topics: tuple[str, ...]
) -> ValueSchemaFields:
    ids = _read_ids(section, values, folder, topics)
    message = section.optional("message")
    if message is not None and values != "protobuf":
        section.report("message", "only Protobuf values have a message", "remove it")
    if values == "raw":
        return ValueSchemaFields(text=section.text("schema", ""))
    if values == "json":
        return _json_fields(section, ids)
    text, reader = _declared_reader(section, values, folder)
    if reader is None and ids is not None:
        reader = _newest(ids)
    is_valid = reader is None or _check_reader(section, values, reader, message)
    if reader is None and (ids is None or ids.registry is None):
        _report_missing_reader(section, values)
    elif reader is not None and is_valid and ids is not None:
        _check_writers(section, values, ids, reader, message)
    return ValueSchemaFields(text=text, reader=reader, message=message, ids=ids)


def check_columns(section: Section, ddl: str) -> None:
    remedy = 'write schema = "id BIGINT, name STRING"'
    section.check("schema", lambda: declared_columns(ddl), remedy)


def _json_fields(section: Section, ids: SchemaIds | None) -> ValueSchemaFields:
    declared = section.text("schema", INFER if ids is None else "")
    if declared not in ("", INFER):
        check_columns(section, declared)
    reader = None
    if not declared and ids is not None and ids.registry is None:
        reader = _newest(ids)
        if reader is not None:
            _check_reader(section, "json", reader, None)
    return ValueSchemaFields(text=declared, reader=reader, ids=ids)


def _read_ids(
    section: Section, values: str, folder: Path, topics: tuple[str, ...]
) -> SchemaIds | None:
    is_expected = section.flag("registry_header")
    is_refused = section.has("registry_header") and not is_expected
    has_registry, has_schemas = section.has("registry"), section.has("schemas")
    user_info = section.text("registry_user_info", "", is_secret=True) or None
    subject = section.text("subject", f"{topics[0]}-value" if topics else "values")
    if not has_registry:
        for field in ("registry_user_info", "subject"):
            if section.has(field):
                section.report(field, "needs a registry", 'add registry = "http://HOST:8081"')
    if has_registry or has_schemas:
        field = "registry" if has_registry else "schemas"
        if values == "raw":
            section.report(field, "raw values are not decoded", 'set values = "avro"')
        if is_refused:
            section.report(
                "registry_header", f"conflicts with {field}", "remove one of both fields"
            )
    elif is_expected:
        example = EXAMPLES.get(values, EXAMPLES["avro"])
        section.report(
            "registry_header",
            "values name the schema of their writer by an id, and no id is declared here",
            f'add schemas = {{ 1 = "{example}" }} with the ids of the registry, or '
            'registry = "http://HOST:8081"',
        )
    if has_registry and has_schemas:
        section.report("schemas", "conflicts with registry", "remove one of both fields")
    if has_registry:
        if len(topics) > 1 and not section.has("subject") and not _has_reader(section):
            section.report(
                "subject",
                "several topics have no common subject",
                f'add subject = "{topics[0]}-value", or a schema',
            )
        address = _read_address(section, user_info)
        return None if address is None else SchemaIds(registry=address, subject=subject)
    if has_schemas:
        return SchemaIds(declared=_read_declared(section, values, folder))
    return None


def _has_reader(section: Section) -> bool:
    return section.has("schema") or section.has("schema_file")


def _read_address(section: Section, user_info: str | None) -> RegistryAddress | None:
    try:
        return parse_registry(section.text("registry", is_secret=True), user_info)
    except ValueError as error:
        section.report("registry", str(error), 'write registry = "http://HOST:8081"')
        return None


def _read_declared(
    section: Section, values: str, folder: Path
) -> tuple[tuple[int, RegisteredSchema], ...]:
    found: dict[int, RegisteredSchema] = {}
    pairs = section.pairs("schemas")
    remedy = f'write schemas = {{ 1 = "{EXAMPLES.get(values, EXAMPLES["avro"])}" }}'
    if section.has("schemas") and not pairs:
        section.report("schemas", "declares no schema id", remedy)
    for name, file in pairs.items():
        if not name.isdecimal() or int(name) > SCHEMA_ID_MAX:
            section.report("schemas", f"{name!r} is not a schema id", remedy)
            continue
        schema = _load(section, f"schemas.{name}", values, folder / file, remedy)
        if schema is not None:
            found[int(name)] = schema
    return tuple(sorted(found.items(), key=lambda pair: pair[0]))


def _newest(ids: SchemaIds) -> RegisteredSchema | None:
    """Registries count up, so the largest id is the latest schema."""
    return ids.declared[-1][1] if ids.declared else None


def _declared_reader(
    section: Section, values: str, folder: Path
) -> tuple[str, RegisteredSchema | None]:
    text = section.text("schema", "")
    file = section.optional("schema_file")
    if file is not None:
        remedy = "schema_file is the path of a schema, relative to this file"
        schema = _load(section, "schema_file", values, folder / file, remedy)
        return ("", None) if schema is None else (schema.text, schema)
    if not text:
        return "", None
    loaded: list[RegisteredSchema] = []
    section.check("schema", lambda: loaded.append(_parsed(values, text)), _reader_remedy(values))
    return text, loaded[0] if loaded else None


def _report_missing_reader(section: Section, values: str) -> None:
    if not _has_reader(section) and not section.has("schemas"):
        section.report("schema", f"{values} values need a schema", _reader_remedy(values))


def _reader_remedy(values: str) -> str:
    if values == "avro":
        return "set schema to the JSON of the schema, or schema_file to the path of an .avsc file"
    return "set schema to the text of the schema, or schema_file to the path of a .proto file"


def _load(
    section: Section, field: str, values: str, path: Path, remedy: str
) -> RegisteredSchema | None:
    if values == "raw":
        return None  # already reported
    loaded: list[RegisteredSchema] = []

    def load() -> None:
        try:
            loaded.append(_parsed_file(values, path))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"{path.name}: {reason}") from None

    section.check(field, load, remedy)
    return loaded[0] if loaded else None


def _parsed_file(values: str, path: Path) -> RegisteredSchema:
    if values == "protobuf":
        _check_library(values)
        from riverrun.registry.protobuf import compile_file

        return compile_file(path)
    return _parsed(values, path.read_text())


def _parsed(values: str, text: str) -> RegisteredSchema:
    """Raises ValueError if the text is not a schema."""
    _check_library(values)
    match values:
        case "protobuf":
            from riverrun.registry.protobuf import compile_text

            return compile_text(text, {})
        case "json":
            from riverrun.registry.json_schema import JsonValidator

            schema = RegisteredSchema(SchemaFormat.JSON, text)
            JsonValidator(schema, "the schema")
            return schema
        case _:
            from riverrun.registry.avro import self_contained

            schema = RegisteredSchema(SchemaFormat.AVRO, text)
            self_contained(schema)
            return schema


def _check_library(values: str) -> None:
    if find_spec(LIBRARIES[values]) is None:
        raise ValueError(f"{values} schemas need {LIBRARIES[values]}: {INSTALL}")


def _check_reader(
    section: Section, values: str, reader: RegisteredSchema, message: str | None
) -> bool:
    """Check that the reader's schema has columns. Without Spark the pipeline cannot run anyway."""
    if find_spec("pyspark") is None:
        return True
    from riverrun.pipeline.sources.reader_schema import reader_columns

    field = next(
        (one for one in ("schema_file", "schema", "schemas") if section.has(one)), "schema"
    )
    return _is_valid(
        section, field, lambda: reader_columns(reader, message), _columns_remedy(values)
    )


def _columns_remedy(values: str) -> str:
    if values == "json":
        return 'declare the columns: schema = "id BIGINT, name STRING"'
    return _reader_remedy(values)


def _is_valid(section: Section, field: str, check: Callable[[], object], remedy: str) -> bool:
    try:
        check()
    except ValueError as error:
        section.report(field, str(error), remedy)
        return False
    return True


def _check_writers(
    section: Section,
    values: str,
    ids: SchemaIds,
    reader: RegisteredSchema,
    message: str | None,
) -> None:
    """Check that values of each declared schema can be resolved to the reader's schema."""
    if find_spec("pyspark") is None:
        return
    from riverrun.pipeline.sources.reader_schema import check_resolvable

    remedy = "give new fields of the reader's schema a default, or choose another reader's schema"
    for number, writer in ids.declared:
        check = partial(check_resolvable, writer, reader, message)
        section.check(f"schemas.{number}", check, remedy)
