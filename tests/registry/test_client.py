"""The client of the registry: what is a fact about a schema, and what is an outage."""

import json
import socket
from typing import Any

import pytest

from riverrun.registry.address import USER_INFO_VARIABLE, parse_registry
from riverrun.registry.catalog import (
    SCHEMAS_MAX,
    SECOND_LOOK_SECONDS,
    UNUSABLE_SECONDS,
    DeclaredCatalog,
    RegistryCatalog,
)
from riverrun.registry.client import ATTEMPTS_MAX, RegistryClient
from riverrun.registry.errors import (
    RegistryUnavailable,
    UnknownSchema,
    UnknownSubject,
    UnusableSchema,
)
from riverrun.registry.framing import SchemaId
from riverrun.registry.schema import RegisteredSchema, SchemaFormat
from tests.registry.server import RegistryServer

ORDER = json.dumps({"type": "record", "name": "Order", "fields": []})
ID = SchemaId(1)


def client_of(url: str, pauses: list[float] | None = None) -> RegistryClient:
    kept: list[float] = [] if pauses is None else pauses
    return RegistryClient(parse_registry(url), pause=kept.append)


def test_schema_has_its_format_text_and_references(registry: RegistryServer) -> None:
    registry.register("money-value", '{"type": "fixed", "name": "Money", "size": 8}')
    reference = {"name": "Money", "subject": "money-value", "version": 1}
    schema_id = registry.register("orders-value", ORDER, references=[reference])
    found = client_of(registry.url).schema(SchemaId(schema_id))
    assert (found.format, found.text) == (SchemaFormat.AVRO, ORDER)
    assert [each.name for each in found.dependencies()] == ["Money"]
    latest = client_of(registry.url).latest("orders-value")
    assert (latest.id, latest.version, latest.schema) == (schema_id, 1, found)


def test_latest_version_is_resolved_once(registry: RegistryServer) -> None:
    """A pipeline asks for it with each batch."""
    reference = {"name": "Money", "subject": "money-value", "version": 1}
    registry.register("money-value", '{"type": "fixed", "name": "Money", "size": 8}')
    registry.register("orders-value", ORDER, references=[reference])
    client = client_of(registry.url)
    known = client.latest("orders-value")
    registry.requests.clear()
    assert client.latest("orders-value", known) is known
    assert len(registry.requests) == 1
    registry.register("orders-value", '"string"')
    assert client.latest("orders-value", known).version == 2


def test_check_needs_an_answer_and_no_schema(registry: RegistryServer) -> None:
    client_of(registry.url).check()
    registry.faults = [(403, {"error_code": 40301})]
    client_of(registry.url).check()
    for fault in ((401, {"error_code": 40101}), (404, {"message": "not a registry"})):
        registry.faults = [fault]
        with pytest.raises(RegistryUnavailable):
            client_of(registry.url).check()


def test_subject_may_have_any_name(registry: RegistryServer) -> None:
    registry.register("a/b c?", ORDER)
    assert client_of(registry.url).latest("a/b c?").schema.text == ORDER


def test_only_the_registry_can_say_that_a_schema_is_unknown(registry: RegistryServer) -> None:
    with pytest.raises(UnknownSchema, match="schema id 1 is unknown to the registry http://"):
        client_of(registry.url).schema(ID)
    with pytest.raises(UnknownSubject, match="has no subject orders-value"):
        client_of(registry.url).latest("orders-value")
    with pytest.raises(RegistryUnavailable, match="HTTP 404"):
        client_of(f"{registry.url}/wrong").schema(ID)


@pytest.mark.parametrize(
    "fault",
    [
        b"<html>",
        b"[]",
        (404, {"message": "a proxy"}),
        (400, {"error_code": 42, "message": "no"}),
        (401, {"error_code": 40101}),
    ],
)
def test_unexpected_answer_is_an_outage_without_retries(
    registry: RegistryServer, fault: Any
) -> None:
    registry.register("orders-value", ORDER)
    registry.faults = [fault]
    with pytest.raises(RegistryUnavailable):
        client_of(registry.url).schema(ID)
    assert len(registry.requests) == 1


def test_temporary_failure_is_retried_a_limited_number_of_times(registry: RegistryServer) -> None:
    registry.register("orders-value", ORDER)
    pauses: list[float] = []
    busy = (503, {"error_code": 50301, "message": "no leader"})
    registry.faults = [busy] * (ATTEMPTS_MAX - 1)
    assert client_of(registry.url, pauses).schema(ID).text == ORDER
    assert pauses == [0.2, 0.4, 0.8]
    registry.faults = [busy] * ATTEMPTS_MAX
    with pytest.raises(RegistryUnavailable, match="HTTP 503 no leader"):
        client_of(registry.url).schema(ID)
    assert not registry.faults


def test_next_node_of_the_registry_is_asked_if_one_is_down(registry: RegistryServer) -> None:
    registry.register("orders-value", ORDER)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{unused.getsockname()[1]}"
    assert client_of(f"{down},{registry.url}").schema(ID).text == ORDER
    with pytest.raises(RegistryUnavailable, match="is unavailable: Connection refused"):
        client_of(down).schema(ID)


def test_user_and_password_are_sent_and_never_shown(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("orders-value", ORDER)
    registry.user_info = "ann:sec/ret@1"
    in_url = registry.url.replace("//", "//ann:sec%2Fret%401@")
    monkeypatch.delenv(USER_INFO_VARIABLE, raising=False)
    for address in (parse_registry(in_url), parse_registry(registry.url, "ann:sec/ret@1")):
        assert RegistryClient(address).schema(ID).text == ORDER
        assert "sec" not in f"{address} {address!r}"
    with pytest.raises(RegistryUnavailable, match=r"refuses access \(HTTP 401\)"):
        client_of(registry.url).schema(ID)
    monkeypatch.setenv(USER_INFO_VARIABLE, "ann:sec/ret@1")
    assert client_of(registry.url).schema(ID).text == ORDER


@pytest.mark.parametrize(
    "text",
    [
        "ftp://ann:secret@host",
        "ann:secret@host:8081",
        "http://ann:secret@",
        "http://ann:sec/ret@host:x",
        "http://ann:secret@host?x=1",
        "http://ann:secret@host,http://ben:secret@other",
    ],
)
def test_invalid_address_is_rejected_without_its_password(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_registry(text)
    assert "ret" not in str(caught.value)


@pytest.mark.parametrize(
    "references",
    [
        [{"name": "x", "subject": "missing", "version": 1}],
        [{"name": "x", "subject": "orders-value", "version": 9}],
        [{"name": "x", "subject": "orders-value", "version": 1}],
        [{"name": "x"}],
        ["x"],
    ],
)
def test_schema_with_an_invalid_reference_is_unusable(
    registry: RegistryServer, references: list[Any]
) -> None:
    registry.register("orders-value", ORDER, references=references)
    with pytest.raises(UnusableSchema, match="schema id 1 "):
        client_of(registry.url).schema(ID)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def time(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def catalog_of(registry: RegistryServer, clock: Clock) -> RegistryCatalog:
    return RegistryCatalog(client_of(registry.url), now=clock.time, pause=clock.pause)


def test_schema_is_asked_for_once(registry: RegistryServer) -> None:
    registry.register("orders-value", ORDER)
    catalog = catalog_of(registry, Clock())
    for _ in range(3):
        catalog.prepare([ID])
        assert catalog.find(ID).text == ORDER
    assert len(registry.requests) == 1


def test_catalog_has_a_limited_size(registry: RegistryServer) -> None:
    catalog = catalog_of(registry, Clock())
    for number in range(SCHEMAS_MAX + 1):
        schema_id = registry.register("s", json.dumps({"type": "string", "n": number}))
        catalog.find(SchemaId(schema_id))
    registry.requests.clear()
    catalog.find(SchemaId(SCHEMAS_MAX))
    assert not registry.requests
    catalog.find(ID)
    assert len(registry.requests) == 1


def test_unknown_id_is_looked_up_twice_and_again_after_a_while(registry: RegistryServer) -> None:
    """A node of the registry may not know an id yet that another node has assigned."""
    clock = Clock()
    catalog = catalog_of(registry, clock)
    catalog.prepare([ID, SchemaId(2)])
    assert clock.pauses == [SECOND_LOOK_SECONDS]
    assert registry.count("/schemas/ids/1") == 2
    for _ in range(2):
        catalog.prepare([ID])
        with pytest.raises(UnknownSchema, match="schema id 1 is unknown"):
            catalog.find(ID)
    assert registry.count("/schemas/ids/1") == 2
    registry.register("orders-value", ORDER)
    clock.now += UNUSABLE_SECONDS
    assert catalog.find(ID).text == ORDER


def test_outage_is_not_remembered(registry: RegistryServer) -> None:
    registry.register("orders-value", ORDER)
    catalog = catalog_of(registry, Clock())
    registry.faults = [(503, {})] * ATTEMPTS_MAX
    with pytest.raises(RegistryUnavailable):
        catalog.prepare([ID])
    assert catalog.find(ID).text == ORDER


def test_id_that_is_not_declared_is_unknown() -> None:
    catalog = DeclaredCatalog({3: RegisteredSchema(SchemaFormat.AVRO, ORDER)})
    assert catalog.find(SchemaId(3)).text == ORDER
    with pytest.raises(UnknownSchema, match="schema id 4 is not declared; the declared ids are 3"):
        catalog.find(SchemaId(4))
