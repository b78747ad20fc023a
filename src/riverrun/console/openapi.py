"""OpenAPI 3.1 of the REST API, derived from the table of endpoints and the types of its values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

import riverrun
from riverrun.console.problems import STATUS_OF_CODE, ErrorBody
from riverrun.console.routing import JSON, ApiEndpoint

VERSION: Final = "3.1.0"
TITLE: Final = "riverrun"
REFERENCE: Final = "#/components/schemas/{name}"
DESCRIPTION: Final = (
    "The REST API of the riverrun console. On a cluster with users, log in with POST /session and "
    "send the cookie, or send HTTP Basic with each request. Requests that change something and "
    "come from a browser need the header X-Riverrun-Console: 1."
)
PARAMETER: Final = re.compile(r"\{(\w+)\}")

Document = dict[str, Any]


def describe(endpoints: Sequence[ApiEndpoint]) -> Document:
    """The document of an API."""
    kinds = _kinds(endpoints)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, Document] = {}
    for endpoint in endpoints:
        at = paths.setdefault(endpoint.full_path, {})
        at[endpoint.method.lower()] = _operation(endpoint, by_kind, components)
    tags = dict.fromkeys(endpoint.tag for endpoint in endpoints)
    return {
        "openapi": VERSION,
        "info": {"title": TITLE, "version": riverrun.__version__, "description": DESCRIPTION},
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "session": {"type": "apiKey", "in": "cookie", "name": "riverrun"},
            },
        },
        "security": [{}, {"basic": []}, {"session": []}],
    }


def _kinds(endpoints: Sequence[ApiEndpoint]) -> list[Any]:
    found: list[Any] = [ErrorBody]
    for endpoint in endpoints:
        for kind in (endpoint.query, endpoint.body, endpoint.response, endpoint.failure):
            if kind is not None and all(kind is not known for known in found):
                found.append(kind)
    return found


def _operation(
    endpoint: ApiEndpoint, by_kind: dict[int, Document], components: Document
) -> Document:
    made: Document = {
        "operationId": endpoint.handler.__module__.rpartition(".")[2]
        + "_"
        + endpoint.handler.__name__,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
    }
    if text := inspect.getdoc(endpoint.handler):
        made["description"] = text
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PARAMETER.findall(endpoint.full_path)
    ]
    if endpoint.query is not None:
        parameters += _query_parameters(by_kind[id(endpoint.query)], components)
    if parameters:
        made["parameters"] = parameters
    if endpoint.body is not None:
        content = {JSON: {"schema": by_kind[id(endpoint.body)]}}
        made["requestBody"] = {"required": True, "content": content}
    answer: Document = {"description": endpoint.summary}
    if endpoint.response is not None:
        answer["content"] = {endpoint.media_type: {"schema": by_kind[id(endpoint.response)]}}
    elif endpoint.media_type:
        answer["content"] = {endpoint.media_type: {}}
    failure = {
        "description": "An error: " + ", ".join(STATUS_OF_CODE) + ".",
        "content": {JSON: {"schema": by_kind[id(endpoint.failure)]}},
    }
    made["responses"] = {str(endpoint.status): answer, "default": failure}
    return made


def _query_parameters(schema: Document, components: Document) -> list[Document]:
    name = schema["$ref"].rpartition("/")[2]
    fields: Document = components[name]["properties"]
    required = components[name].get("required", ())
    return [
        {"name": field, "in": "query", "required": field in required, "schema": kind}
        for field, kind in fields.items()
    ]
