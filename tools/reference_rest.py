"""The reference of the REST API, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from riverrun.console.app import declared_endpoints
from riverrun.console.openapi import describe

Document: TypeAlias = dict[str, Any]

INTRODUCTION = """\
# REST API reference

Every request of the REST API that nodes serve on their HTTP port, with its parameters and fields. `/api/v1/openapi.json` of a node is the same as an OpenAPI document, and `/api/v1/docs` a page to try it.
"""
TYPES = {"integer": "number", "number": "number", "string": "text", "boolean": "yes or no"}
FIELD_DEPTH_MAX = 2
"""Levels of the fields of a body that are listed."""
SHAPE_DEPTH_MAX = 3
"""Levels of the fields of a response that are listed."""


def rest_api() -> str:
    """The page, without its first line."""
    return _page(describe(tuple(declared_endpoints())))


def _page(document: Document) -> str:
    lines = [INTRODUCTION, document["info"]["description"], ""]
    for tag in document["tags"]:
        lines += [f"## {tag['name'].capitalize()}", ""]
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    lines += [*_operation(document, method, path, operation), ""]
    return "\n".join(lines).rstrip() + "\n"


def _operation(document: Document, method: str, path: str, operation: Document) -> Iterator[str]:
    yield f"### {method.upper()} {path}"
    yield ""
    yield _plain(operation["summary"].rstrip(".")) + "."
    about = " ".join(operation.get("description", "").split())
    if about and about.rstrip(".") != operation["summary"].rstrip("."):
        yield ""
        yield _plain(about)
    queried = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
    if queried:
        rows = [(each["name"], each["schema"], each["required"]) for each in queried]
        yield from _table(document, "query", rows)
    if body := operation.get("requestBody"):
        yield from _fields(document, "body", _schema(body))
    (status, answer), *_ = operation["responses"].items()
    schema = _schema(answer)
    if schema:
        yield from ("", f"Response {status}: {_shape(document, schema, 1)}.")
    elif kinds := list(answer.get("content", {})):
        yield from ("", f"Response {status}: `{kinds[0]}`.")


def _shape(document: Document, schema: Document, depth: int) -> str:
    """The names of the fields of a value, with those of the objects inside it."""
    found = _resolved(document, schema)
    if found.get("type") == "array":
        return f"list of {_shape(document, found.get('items', {}), depth)}"
    fields = found.get("properties")
    if not fields or depth > SHAPE_DEPTH_MAX:
        return _kind(document, schema)
    parts: list[str] = []
    for name, field in fields.items():
        inner = _resolved(document, field)
        is_list = inner.get("type") == "array"
        if is_list:
            inner = _resolved(document, inner.get("items", {}))
        is_nested = "properties" in inner and depth < SHAPE_DEPTH_MAX
        more = f" ({_shape(document, inner, depth + 1)})" if is_nested else ""
        parts.append(f"`{name}{'[]' if is_list else ''}`{more}")
    return ", ".join(parts)


def _schema(part: Document) -> Document:
    content = list(part.get("content", {}).values())
    return content[0].get("schema", {}) if content else {}


def _fields(document: Document, title: str, schema: Document) -> Iterator[str]:
    named = _resolved(document, schema)
    rows = [*_rows(document, named, "", 1)]
    if rows:
        yield from _table(document, title, rows)
    else:
        yield ""
        yield f"{title.capitalize()}: {_kind(document, schema)}."


def _rows(
    document: Document, schema: Document, prefix: str, depth: int
) -> Iterator[tuple[str, Document, bool]]:
    """The fields of an object, and those of the objects inside it."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield f"{prefix}{name}", field, name in required
        inner = _resolved(document, field)
        is_list = inner.get("type") == "array"
        if is_list:
            inner = _resolved(document, inner.get("items", {}))
        if depth < FIELD_DEPTH_MAX and "properties" in inner:
            yield from _rows(
                document, inner, f"{prefix}{name}{'[]' if is_list else ''}.", depth + 1
            )


def _table(document: Document, title: str, rows: list[tuple[str, Document, bool]]) -> Iterator[str]:
    yield from ("", f"| {title} | type | default |", "|---|---|---|")
    for name, schema, is_required in rows:
        default = "" if is_required or "default" not in schema else _value(schema["default"])
        yield f"| `{name}` | {_kind(document, schema)} | {default} |"


def _value(value: object) -> str:
    if value is None or value in ("", [], {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _resolved(document: Document, schema: Document) -> Document:
    """The object behind references and optional values."""
    while True:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        elif "anyOf" in schema:
            schema = next((each for each in schema["anyOf"] if each.get("type") != "null"), {})
        else:
            return schema


def _kind(document: Document, schema: Document) -> str:
    if "anyOf" in schema:
        kinds = [_kind(document, each) for each in schema["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    found = _resolved(document, schema)
    if "enum" in found:
        return _kind(document, found)
    match found.get("type"):
        case "array":
            return f"list of {_kind(document, found.get('items', {}))}"
        case "object":
            values = found.get("additionalProperties")
            is_map = isinstance(values, dict) and "properties" not in found
            return f"object of {_kind(document, values)}" if is_map and values else "object"
        case "null":
            return "null"
        case str() as kind:
            return TYPES.get(kind, kind)
        case _:
            return "any"


def _plain(text: str) -> str:
    return text.replace("``", "`").replace("<", "&lt;")
