"""JSON Schemas with their references, and values checked against them.

A validator never uses the network: a ``$ref`` finds the references that the registry lists for the
schema, or nothing.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import jsonschema_rs

from riverrun.registry.errors import UndecodableValue
from riverrun.registry.framing import HEADER_BYTES
from riverrun.registry.schema import RegisteredSchema

DEFAULT_BASE: Final = "json-schema:///"
"""The base URI of a schema without $id in jsonschema-rs."""
REASON_CHARACTERS_MAX: Final = 300


def parse_json_schema(text: str) -> dict[str, Any] | bool:
    """Raises ValueError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid JSON Schema: {error}") from None
    if not isinstance(found, dict | bool):
        raise ValueError("invalid JSON Schema: it is neither an object nor a boolean")
    return found


class SchemaDocuments:
    """A schema and its references by URI."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self.root = parse_json_schema(schema.text)
        self.base = _base_of(self.root, DEFAULT_BASE)
        self._by_uri: dict[str, Any] = {}
        self._by_name: dict[str, Any] = {}
        self._add(schema, self.base)

    def _add(self, schema: RegisteredSchema, base: str) -> None:
        for reference in schema.references:
            uri = joined(base, reference.name)
            if uri not in self._by_uri:
                found = parse_json_schema(reference.schema.text)
                inner = _base_of(found, uri)
                self._by_uri[uri] = self._by_uri[inner] = found
                self._by_name.setdefault(reference.name.lstrip("./"), found)
                self._add(reference.schema, inner)

    def find(self, uri: str) -> Any:
        """The document at a URI. Raises LookupError if the schema does not refer to it."""
        if uri in self._by_uri:
            return self._by_uri[uri]
        for name, found in self._by_name.items():
            if uri == name or uri.endswith(f"/{name}"):
                return found
        raise LookupError(f"the schema lists no reference to {uri}")


class JsonValidator:
    """Checks values of one schema. Raises ValueError if the schema is invalid."""

    def __init__(self, schema: RegisteredSchema, what: str) -> None:
        self._what = what
        documents = SchemaDocuments(schema)
        try:
            self._validator = jsonschema_rs.validator_for(documents.root, retriever=documents.find)
        except jsonschema_rs.ValidationError as error:
            raise ValueError(f"invalid JSON Schema: {_first_line(error)}") from None

    def check(self, data: bytes) -> None:
        """Check the JSON after a header. Raises UndecodableValue."""
        value = parse_value(data[HEADER_BYTES:], self._what)
        if not self._validator.is_valid(value):
            self._explain(value)

    def _explain(self, value: Any) -> None:
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            place = "".join(f"[{part!r}]" for part in error.instance_path)
            where = f" at {place}" if place else ""
            reason = f"the value does not match {self._what}{where}: {_first_line(error)}"
            raise UndecodableValue(reason) from None


def parse_value(data: bytes, what: str) -> Any:
    """The JSON of a value. Raises UndecodableValue."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        # Python reports where a value starts that does not end.
        is_truncated = error.pos >= len(error.doc) or error.msg.startswith("Unterminated")
        if is_truncated:
            text = f"the value is truncated: it ends inside its JSON of {what}"
        else:
            text = f"the value of {what} is not JSON: {error}"
        raise UndecodableValue(text) from None
    except (ValueError, RecursionError) as error:
        raise UndecodableValue(f"the value of {what} is not JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def joined(base: str, reference: str) -> str:
    """Resolve a reference. Python's urljoin does not know the scheme of the default base."""
    if urlsplit(reference).scheme:
        return reference
    if not base.startswith(DEFAULT_BASE):
        return urljoin(base, reference)
    folder = base[len(DEFAULT_BASE) :]
    return DEFAULT_BASE + urljoin(f"/{folder}", reference).lstrip("/")


def _base_of(schema: Any, base: str) -> str:
    name = schema.get("$id") or schema.get("id") if isinstance(schema, dict) else None
    return joined(base, name).partition("#")[0] if isinstance(name, str) and name else base


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:REASON_CHARACTERS_MAX]
