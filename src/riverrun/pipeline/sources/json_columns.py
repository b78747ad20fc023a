"""The columns of a JSON Schema, for ``from_json``.

A part of the schema that has no single column type, such as a choice between types, becomes text:
``from_json`` keeps the JSON of such a value as it is. The values themselves are checked against the
whole schema elsewhere.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from riverrun.registry.json_schema import SchemaDocuments, joined
from riverrun.registry.schema import RegisteredSchema

DEPTH_MAX = 50
_NO_TYPE = StringType()


def json_columns(schema: RegisteredSchema) -> StructType:
    """Raises ValueError if the schema is not that of an object with properties."""
    documents = SchemaDocuments(schema)
    found = _PropertyTypes(documents).type_of(documents.root, documents.base, documents.root, 0)
    if not isinstance(found, StructType) or not found.fields:
        raise ValueError("the JSON Schema is not that of an object with properties")
    return found


class _PropertyTypes:
    def __init__(self, documents: SchemaDocuments) -> None:
        self._documents = documents

    def type_of(self, schema: Any, base: str, document: Any, depth: int) -> DataType:
        """The type of a part of a document, which has the URI ``base``."""
        if not isinstance(schema, dict):
            return _NO_TYPE
        if depth > DEPTH_MAX:
            raise ValueError("the JSON Schema contains itself, so it has no columns")
        own = schema.get("$id")
        if isinstance(own, str) and not own.startswith("#"):
            base, document = joined(base, own).partition("#")[0], schema
        if isinstance(schema.get("$ref"), str):
            return self._referenced(schema["$ref"], base, document, depth)
        match _single_type(schema):
            case "object":
                return self._object(schema, base, document, depth)
            case "array":
                items = schema.get("items")
                return ArrayType(self.type_of(items, base, document, depth + 1))
            case "integer":
                return LongType()
            case "number":
                return DoubleType()
            case "boolean":
                return BooleanType()
            case "optional":
                (branch,) = _branches(schema)
                return self.type_of(branch, base, document, depth + 1)
        return _NO_TYPE

    def _object(self, schema: Any, base: str, document: Any, depth: int) -> DataType:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            return StructType(
                [
                    StructField(name, self.type_of(part, base, document, depth + 1))
                    for name, part in properties.items()
                ]
            )
        values = schema.get("additionalProperties")
        if isinstance(values, dict):
            return MapType(StringType(), self.type_of(values, base, document, depth + 1))
        return _NO_TYPE

    def _referenced(self, reference: str, base: str, document: Any, depth: int) -> DataType:
        place, _, fragment = reference.partition("#")
        if place and joined(base, place) != base:
            base = joined(base, place)
            try:
                document = self._documents.find(base)
            except LookupError as error:
                raise ValueError(f"invalid JSON Schema: {error.args[0]}") from None
        return self.type_of(_part(document, fragment), base, document, depth + 1)


def _part(document: Any, fragment: str) -> Any:
    """The part at a JSON pointer or an anchor; None has no type."""
    if fragment and not fragment.startswith("/"):
        definitions = {**document.get("definitions", {}), **document.get("$defs", {})}
        named = (
            part
            for part in definitions.values()
            if isinstance(part, dict)
            and (part.get("$anchor") == fragment or part.get("$id") == f"#{fragment}")
        )
        return next(named, None)
    found = document
    for step in fragment.split("/")[1:]:
        plain = step.replace("~1", "/").replace("~0", "~")
        found = found.get(plain) if isinstance(found, dict) else None
    return found


def _single_type(schema: Any) -> str | None:
    """The type apart from null; ``optional`` for a choice between null and one schema."""
    kinds = schema.get("type")
    if kinds is None and "properties" in schema:
        return "object"
    if kinds is None and len(_branches(schema)) == 1:
        return "optional"
    named = [kinds] if isinstance(kinds, str) else list(kinds or ())
    apart = [kind for kind in named if kind != "null"]
    return apart[0] if len(apart) == 1 else None


def _branches(schema: Any) -> list[Any]:
    for name in ("oneOf", "anyOf", "allOf"):
        if isinstance(schema.get(name), list):
            return [part for part in schema[name] if part != {"type": "null"}]
    return []
