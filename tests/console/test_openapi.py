"""The description of the REST API is valid OpenAPI 3.1 and covers every endpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from riverrun.console.app import declared_endpoints
from riverrun.console.openapi import describe

ENDPOINTS = tuple(declared_endpoints())
DOCUMENT: dict[str, Any] = json.loads(msgspec.json.encode(describe(ENDPOINTS)))
METHODS = ("get", "put", "post", "delete", "patch")
NAME = "^[a-zA-Z0-9._-]+$"


def closed(required: list[str], /, **properties: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
SCHEMA_OBJECT = {"type": ["object", "boolean"]}
MEDIA = {
    "type": "object",
    "propertyNames": {"pattern": "^[a-z]+/[a-z0-9.+-]+"},
    "additionalProperties": closed([], schema=SCHEMA_OBJECT),
}
PARAMETER = closed(
    ["name", "in", "schema"],
    **{
        "name": TEXT,
        "in": {"enum": ["path", "query", "header", "cookie"]},
        "required": {"type": "boolean"},
        "description": TEXT,
        "schema": SCHEMA_OBJECT,
    },
)
RESPONSE = closed(["description"], description=TEXT, content=MEDIA)
OPERATION = closed(
    ["operationId", "summary", "tags", "responses"],
    operationId={"type": "string", "pattern": NAME},
    summary=TEXT,
    description=TEXT,
    tags={"type": "array", "items": TEXT, "minItems": 1},
    parameters={"type": "array", "items": PARAMETER},
    requestBody=closed(["content"], required={"type": "boolean"}, content=MEDIA, description=TEXT),
    responses={
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": "^([1-5][0-9][0-9]|default)$"},
        "additionalProperties": RESPONSE,
    },
)
OPENAPI = closed(
    ["openapi", "info", "paths"],
    openapi={"const": "3.1.0"},
    info=closed(["title", "version"], title=TEXT, version=TEXT, description=TEXT),
    tags={"type": "array", "items": closed(["name"], name=TEXT, description=TEXT)},
    paths={
        "type": "object",
        "propertyNames": {"pattern": "^/"},
        "additionalProperties": closed([], **dict.fromkeys(METHODS, OPERATION)),
    },
    components=closed(
        [],
        schemas={"type": "object", "propertyNames": {"pattern": NAME}},
        securitySchemes={"type": "object"},
    ),
    security={"type": "array"},
)
"""The parts of the OpenAPI 3.1 specification that we use. Other fields would be mistakes."""


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_document_has_the_form_of_openapi() -> None:
    jsonschema.validate(DOCUMENT, OPENAPI)


def test_every_endpoint_is_described() -> None:
    described = {(method.upper(), path) for path, method, _ in operations()}
    assert described == {(one.method, one.full_path) for one in ENDPOINTS}
    assert len(ENDPOINTS) == len(described)


def test_operations_have_different_names() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


def test_schemas_are_valid_and_all_references_resolve() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert re.fullmatch(NAME, name)
    for reference in references(DOCUMENT):
        assert reference.removeprefix("#/components/schemas/") in schemas, reference


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_parameters_of_a_path_are_declared(path: str) -> None:
    names = set(re.findall(r"\{(\w+)\}", path))
    for method, operation in DOCUMENT["paths"][path].items():
        declared = {
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"
        }
        assert declared == names, method


def test_responses_and_bodies_have_schemas() -> None:
    for path, method, operation in operations():
        for status, response in operation["responses"].items():
            for kind, media in response.get("content", {}).items():
                if kind == "application/json":
                    assert "schema" in media, (path, method, status)
        body = operation.get("requestBody")
        if body is not None:
            assert "schema" in body["content"]["application/json"], (path, method)


def test_every_write_can_be_tried_first() -> None:
    """``dry_run`` is in the body, or in the query of DELETE; the other form of REST has none."""
    for endpoint in ENDPOINTS:
        is_ours = endpoint.full_path.startswith("/api/v1/clusters/")
        if endpoint.changes and is_ours:
            kind = endpoint.query if endpoint.method == "DELETE" else endpoint.body
            assert kind is not None and "dry_run" in kind.__struct_fields__, endpoint.full_path
