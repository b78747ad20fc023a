"""Values and schemas of a registry that we did not write: Apicurio, with Confluent's clients."""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import Schema

from riverrun.registry.address import parse_registry
from riverrun.registry.catalog import RegistryCatalog
from riverrun.registry.client import RegistryClient
from riverrun.registry.errors import RegistryUnavailable, UnknownSchema, UnknownSubject
from riverrun.registry.framing import SchemaId, schema_id_of
from riverrun.registry.rendering import JsonRenderer
from tests.peers import find_registry, need
from tests.processes import STOP_SECONDS_MAX, free_ports, until
from tests.registry.serializers import (
    avro_serializer,
    client_of,
    json_serializer,
    protobuf_message,
    protobuf_serializer,
)

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(600)]

START_SECONDS_MAX = 180
"""It takes ten seconds on a quiet machine."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    java, folder = need(find_registry)
    port = free_ports(1)
    command = [
        java,
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        f"-Dquarkus.http.port={port}",
        "-Dquarkus.http.host=127.0.0.1",
        "-Dapicurio.storage.kind=sql",
        "-Dapicurio.storage.sql.kind=h2",
        f"-Dapicurio.datasource.url=jdbc:h2:mem:registry_{port}",
        "-jar",
        str(folder / "quarkus-run.jar"),
    ]
    found = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    client = RegistryClient(parse_registry(found), pause=lambda _seconds: None)

    def is_up() -> bool:
        assert process.poll() is None, "the registry has ended"
        with contextlib.suppress(RegistryUnavailable):
            client.check()
            return True
        return False

    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            until(is_up, seconds=START_SECONDS_MAX, what="Apicurio Registry")
            yield found
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def client(url: str) -> RegistryClient:
    return RegistryClient(parse_registry(url))


def render(client: RegistryClient, data: bytes) -> object:
    return json.loads(JsonRenderer(RegistryCatalog(client)).render(data))


def test_avro_with_a_reference_is_decoded(url: str, client: RegistryClient) -> None:
    fields = [{"name": "n", "type": "long"}]
    money = {"type": "record", "name": "shop.Money", "fields": fields}
    client_of(url).register_schema("money", Schema(json.dumps(money), "AVRO"))
    price = {"name": "price", "type": "shop.Money"}
    order = {"type": "record", "name": "shop.Order", "fields": [price]}
    references = [("shop.Money", "money", 1)]
    serialize = avro_serializer(url, "avro", json.dumps(order), references)
    data = serialize({"price": {"n": 5}})
    assert render(client, data) == {"price": {"n": 5}}
    latest = client.latest("avro-value")
    assert (latest.id, latest.version) == (schema_id_of(data), 1)
    assert latest.schema == client.schema(latest.id)


def test_json_with_a_reference_is_decoded(url: str, client: RegistryClient) -> None:
    product = {"type": "object", "properties": {"name": {"type": "string"}}}
    client_of(url).register_schema("product", Schema(json.dumps(product), "JSON"))
    order = {"title": "O", "type": "object", "properties": {"p": {"$ref": "product.json"}}}
    references = [("product.json", "product", 1)]
    serialize = json_serializer(url, "json", json.dumps(order), references)
    assert render(client, serialize({"p": {"name": "x"}})) == {"p": {"name": "x"}}


def test_protobuf_that_a_client_registered_is_decoded(url: str, client: RegistryClient) -> None:
    """Confluent's client for Python registers a descriptor, not a text."""
    message = protobuf_message(
        'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";'
        " message Other {} message Order { int64 id = 1; google.protobuf.Timestamp at = 2; }",
        "shop.Order",
    )
    value = message(id=5)
    value.at.seconds = 1
    data = protobuf_serializer(url, "protobuf", message)(value)
    assert render(client, data) == {"id": "5", "at": "1970-01-01T00:00:01Z"}


def test_protobuf_with_an_import_is_decoded(url: str, client: RegistryClient) -> None:
    line = 'syntax = "proto3"; package shop; message Line { string product = 1; }'
    order = (
        'syntax = "proto3"; package shop; import "shop/line.proto";'
        " message Order { Line line = 1; }"
    )
    registry = client_of(url)
    registry.register_schema("line", Schema(line, "PROTOBUF"))
    reference = {"name": "shop/line.proto", "subject": "line", "version": 1}
    schema_id = registry.register_schema(
        "order",
        Schema.from_dict({"schema": order, "schemaType": "PROTOBUF", "references": [reference]}),
    )
    data = b"\0" + schema_id.to_bytes(4, "big") + b"\0" + b"\x0a\x03\x0a\x01x"
    assert render(client, data) == {"line": {"product": "x"}}


def test_unknown_ids_and_subjects_are_told_from_outages(url: str, client: RegistryClient) -> None:
    with pytest.raises(UnknownSchema):
        client.schema(SchemaId(99_999))
    with pytest.raises(UnknownSubject):
        client.latest("nothing")
    with pytest.raises(RegistryUnavailable, match="HTTP 404"):
        RegistryClient(parse_registry(url.removesuffix("/v7"))).schema(SchemaId(1))
