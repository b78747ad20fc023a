"""Reads schemas from a registry with the REST API of Confluent, Karapace, Redpanda and Apicurio.

A missing schema is a fact about the schema, but only if the registry says so with its own error
code. Any other failure may be a wrong URL or an outage. It raises RegistryUnavailable, so that no
record is rejected because of the network.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from riverrun.ports.aio import Backoff
from riverrun.registry.address import USER_INFO_VARIABLE, RegistryAddress
from riverrun.registry.errors import (
    RegistryUnavailable,
    UnknownSchema,
    UnknownSubject,
    UnusableSchema,
)
from riverrun.registry.framing import SchemaId
from riverrun.registry.schema import NamedReference, RegisteredSchema, SchemaFormat

ATTEMPTS_MAX: Final = 4
ATTEMPT_SECONDS_MAX: Final = 5.0
BACKOFF: Final = Backoff(first_seconds=0.2, max_seconds=1.0)
RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
REFERENCES_MAX: Final = 1000
REFERENCE_DEPTH_MAX: Final = 32
MESSAGE_CHARACTERS_MAX: Final = 200

ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
_NOT_FOUND: Final = (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND)
_RETRIABLE: Final = (408, 429, 500, 502, 503, 504)
FORBIDDEN: Final = 403
_UNAUTHORIZED: Final = (401, FORBIDDEN)


class NotRegistered(Exception):
    """The registry's own answer that it does not have what was asked for."""


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """One version of a subject."""

    id: SchemaId
    version: int
    schema: RegisteredSchema


class RegistryClient:
    """Each call makes requests; ``catalog.RegistryCatalog`` remembers the results.

    :param pause: waits between attempts.
    """

    def __init__(
        self, address: RegistryAddress, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.address = address
        self._pause = pause
        self._opener = urllib.request.build_opener()

    def schema(self, schema_id: SchemaId) -> RegisteredSchema:
        """Raises UnknownSchema, UnusableSchema and RegistryUnavailable."""
        path = f"/schemas/ids/{schema_id}"
        try:
            found = self._get(path)
        except NotRegistered:
            raise UnknownSchema(
                f"schema id {schema_id} is unknown to the registry {self.address}"
            ) from None
        return self._resolved(path, found, f"schema id {schema_id}")

    def latest(self, subject: str, known: SubjectVersion | None = None) -> SubjectVersion:
        """The latest version; ``known`` itself if it is still that.

        Raises UnknownSubject, UnusableSchema and RegistryUnavailable.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        try:
            found = self._get(path)
        except NotRegistered:
            raise UnknownSubject(f"the registry {self.address} has no subject {subject}") from None
        number, version = found.get("id"), found.get("version")
        if not isinstance(number, int) or not isinstance(version, int):
            raise self._unavailable("the response has no id and version")
        if known is not None and (known.id, known.version) == (number, version):
            return known
        schema = self._resolved(path, found, f"subject {subject}")
        return SubjectVersion(SchemaId(number), version, schema)

    def check(self) -> None:
        """Raise RegistryUnavailable unless the registry answers, whether it has schemas or not."""
        try:
            self._get("/schemas/ids/1")
        except NotRegistered:
            pass
        except RegistryUnavailable as error:
            if error.status != FORBIDDEN:  # this schema may be forbidden, and others not
                raise

    def _resolved(self, path: str, found: Mapping[str, Any], what: str) -> RegisteredSchema:
        return _ReferenceResolver(self, what).resolve(path, found, 0)

    def serialized(self, path: str) -> bytes | None:
        """A Protobuf schema as a descriptor, if the registry offers it.

        The text of the schema means the same. So a failure is no error, and is not retried.
        """
        try:
            found = self._get(f"{path}?format=serialized", attempts_max=1)
        except (RegistryUnavailable, NotRegistered):
            return None
        return _descriptor_of(str(found.get("schema", "")))

    def reference(self, subject: str, version: int) -> tuple[str, Mapping[str, Any]]:
        """A version of a subject, and its path. It may be deleted, but others still refer to it."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        return path, self._get(f"{path}?deleted=true")

    def _get(self, path: str, *, attempts_max: int = ATTEMPTS_MAX) -> Mapping[str, Any]:
        """The JSON object at a path. Asks the nodes of the registry in turn."""
        attempt = 0
        while True:
            url = self.address.urls[attempt % len(self.address.urls)]
            attempt += 1
            try:
                return self._request(url + path)
            except RegistryUnavailable:
                raise
            except urllib.error.HTTPError as error:
                if error.code not in _RETRIABLE or attempt >= attempts_max:
                    raise self._unavailable(_status_text(error), error.code) from None
            except (OSError, http.client.HTTPException) as error:
                if attempt >= attempts_max:
                    raise self._unavailable(_reason_text(error)) from None
            self._pause(BACKOFF.exact(attempt))

    def _request(self, url: str) -> Mapping[str, Any]:
        request = urllib.request.Request(url, headers={"Accept": ACCEPT})
        authorization = self.address.authorization
        if authorization is not None:
            request.add_unredirected_header("Authorization", authorization)
        try:
            with self._opener.open(request, timeout=ATTEMPT_SECONDS_MAX) as response:
                return self._parse(response.read(RESPONSE_BYTES_MAX + 1))
        except urllib.error.HTTPError as error:
            with error:
                body = error.read(RESPONSE_BYTES_MAX)
            if _error_code(body) in _NOT_FOUND:
                raise NotRegistered from None
            error.msg = _error_message(body) or error.msg
            raise

    def _parse(self, body: bytes) -> Mapping[str, Any]:
        if len(body) > RESPONSE_BYTES_MAX:
            raise self._unavailable(f"the response has more than {RESPONSE_BYTES_MAX} bytes")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._unavailable("the response is not a JSON object, so this is no registry")
        return found

    def _unavailable(self, reason: str, status: int | None = None) -> RegistryUnavailable:
        text = f"the schema registry {self.address} is unavailable: {reason}"
        return RegistryUnavailable(text, status)


class _ReferenceResolver:
    """Resolves the references of one schema, each subject and version once."""

    def __init__(self, client: RegistryClient, what: str) -> None:
        self._client = client
        self._what = what
        self._known: dict[tuple[str, int], RegisteredSchema] = {}

    def resolve(self, path: str, found: Mapping[str, Any], depth: int) -> RegisteredSchema:
        text, name = found.get("schema"), found.get("schemaType", SchemaFormat.AVRO)
        if not isinstance(text, str):
            raise UnusableSchema(f"{self._what} has no text in the registry's response")
        try:
            format_ = SchemaFormat(name)
        except ValueError:
            raise UnusableSchema(f"{self._what} has the unsupported type {name}") from None
        if depth > REFERENCE_DEPTH_MAX:
            raise UnusableSchema(f"{self._what} has references in a circle, or too deep")
        references = tuple(self._reference(one, depth) for one in found.get("references") or ())
        descriptor = None
        if format_ is SchemaFormat.PROTOBUF:
            descriptor = _descriptor_of(text) or self._client.serialized(path)
        return RegisteredSchema(format_, text, references, descriptor)

    def _reference(self, found: Any, depth: int) -> NamedReference:
        try:
            name, place = str(found["name"]), (str(found["subject"]), int(found["version"]))
        except (KeyError, TypeError, ValueError):
            raise UnusableSchema(f"{self._what} has an invalid reference: {found}") from None
        if place not in self._known:
            if len(self._known) >= REFERENCES_MAX:
                raise UnusableSchema(f"{self._what} has more than {REFERENCES_MAX} references")
            try:
                path, schema = self._client.reference(*place)
            except NotRegistered:
                raise UnusableSchema(
                    f"{self._what} refers to version {place[1]} of subject {place[0]}, which the "
                    "registry does not have"
                ) from None
            self._known[place] = self.resolve(path, schema, depth + 1)
        return NamedReference(name, self._known[place])


def _descriptor_of(text: str) -> bytes | None:
    """A descriptor in base64, which some clients register instead of text.

    The text of a Protobuf schema is never base64, because it has spaces and semicolons.
    """
    try:
        return base64.b64decode(text, validate=True) or None
    except (binascii.Error, ValueError):
        return None


def _status_text(error: urllib.error.HTTPError) -> str:
    if error.code in _UNAUTHORIZED:
        return (
            f"it refuses access (HTTP {error.code}); put user:password into the URL or into "
            f"{USER_INFO_VARIABLE}"
        )
    return f"HTTP {error.code} {error.msg}".strip()[:MESSAGE_CHARACTERS_MAX]


def _reason_text(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {ATTEMPT_SECONDS_MAX:g} seconds"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no response within {ATTEMPT_SECONDS_MAX:g} seconds"
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return (text or type(reason).__name__)[:MESSAGE_CHARACTERS_MAX]


def _error_body(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _error_code(body: bytes) -> int | None:
    code = _error_body(body).get("error_code")
    return code if isinstance(code, int) else None


def _error_message(body: bytes) -> str:
    lines = str(_error_body(body).get("message", "")).splitlines()
    return lines[0] if lines else ""
