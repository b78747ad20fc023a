"""A schema registry in memory with the REST paths that clients use, for tests."""

import base64
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf import descriptor_pb2

from riverrun.registry.protobuf import compile_text

SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403

Answer = tuple[int, Mapping[str, Any] | list[Any]]
Entry = dict[str, Any]


class RegistryServer:
    """The schemas, the requests that were made, and the faults to inject."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.user_info: str | None = None
        """If set, requests must have this user and password."""
        self.offers_descriptors = True
        """Whether Protobuf schemas are served as descriptors too."""
        self.faults: list[Answer | bytes] = []
        """Answers for the next requests: a status with an object, or a body of another kind."""
        self._schemas: list[Entry] = []
        self._subjects: dict[str, list[int]] = {}

    def register(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
    ) -> int:
        """The id of the schema. The same schema has the same id."""
        entry: Entry = {"schema": schema, "schemaType": kind, "references": references or []}
        if entry not in self._schemas:
            self._schemas.append(entry)
        schema_id = self._schemas.index(entry) + 1
        versions = self._subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def count(self, part: str) -> int:
        """The number of requests whose path contains this part."""
        return sum(part in path for path in self.requests)

    def answer(self, method: str, path: str, body: Mapping[str, Any]) -> Answer:
        parts = urlsplit(path)
        is_serialized = "serialized" in parse_qs(parts.query).get("format", [])
        found = re.fullmatch(r"/schemas/ids/(\d+)", parts.path)
        if found:
            return self._by_id(int(found[1]), is_serialized=is_serialized)
        found = re.fullmatch(r"/subjects/([^/]+)(?:/versions(?:/([^/]+))?)?", parts.path)
        if found is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        subject = unquote(found[1])
        if method == "POST":
            kind = body.get("schemaType", "AVRO")
            schema_id = self.register(subject, body["schema"], kind, body.get("references"))
            return 200, self._version(subject, schema_id)
        versions = self._subjects.get(subject)
        if versions is None:
            return 404, {"error_code": SUBJECT_NOT_FOUND, "message": f"no {subject}"}
        if found[2] in ("latest", "-1"):
            return 200, self._version(subject, versions[-1], is_serialized=is_serialized)
        number = int(found[2])
        if not 1 <= number <= len(versions):
            return 404, {"error_code": VERSION_NOT_FOUND, "message": f"no version {number}"}
        return 200, self._version(subject, versions[number - 1], is_serialized=is_serialized)

    def _by_id(self, schema_id: int, *, is_serialized: bool) -> Answer:
        if not 1 <= schema_id <= len(self._schemas):
            return 404, {"error_code": SCHEMA_NOT_FOUND, "message": "Schema not found"}
        return 200, self._entry(schema_id, is_serialized=is_serialized)

    def _version(self, subject: str, schema_id: int, *, is_serialized: bool = False) -> Entry:
        version = self._subjects[subject].index(schema_id) + 1
        entry = self._entry(schema_id, is_serialized=is_serialized)
        return {"subject": subject, "version": version, "id": schema_id, **entry}

    def _entry(self, schema_id: int, *, is_serialized: bool) -> Entry:
        """As Confluent's registry answers: Avro is the default, and is not named."""
        entry = {key: value for key, value in self._schemas[schema_id - 1].items() if value}
        if is_serialized and self.offers_descriptors and ";" in entry["schema"]:
            entry["schema"] = self._descriptor(schema_id)
        if entry["schemaType"] == "AVRO":
            del entry["schemaType"]
        return entry

    def _descriptor(self, schema_id: int) -> str:
        entry = self._schemas[schema_id - 1]
        texts: dict[str, str] = {}

        def visit(references: list[dict[str, Any]]) -> None:
            for one in references:
                inner = self._schemas[self._subjects[one["subject"]][one["version"] - 1] - 1]
                texts[one["name"]] = inner["schema"]
                visit(inner["references"])

        visit(entry["references"])
        descriptor = compile_text(entry["schema"], texts).descriptor
        assert descriptor is not None
        file = descriptor_pb2.FileDescriptorProto.FromString(descriptor)
        file.name = "default"
        return base64.b64encode(file.SerializeToString()).decode()


@contextmanager
def serve_registry(known: RegistryServer | None = None) -> Iterator[RegistryServer]:
    """Serve a new registry, or a known one again at its address."""
    registry = RegistryServer() if known is None else known

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            self._answer(json.loads(self.rfile.read(size)))

        def _answer(self, body: Mapping[str, Any]) -> None:
            registry.requests.append(self.path)
            if registry.faults:
                fault = registry.faults.pop(0)
                if isinstance(fault, bytes):
                    self._send(200, fault)
                else:
                    self._send(fault[0], json.dumps(fault[1]).encode())
                return
            if registry.user_info is not None:
                token = base64.b64encode(registry.user_info.encode()).decode()
                if self.headers.get("Authorization") != f"Basic {token}":
                    self._send(401, b'{"error_code": 40101, "message": "Unauthorized"}')
                    return
            status, found = registry.answer(self.command, self.path, body)
            self._send(status, json.dumps(found).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Tests look at ``requests`` instead."""

    port = urlsplit(registry.url).port or 0
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
