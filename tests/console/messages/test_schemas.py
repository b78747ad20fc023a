"""Payloads by the schemas of a registry, and a registry that does not respond."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from riverrun.console.messages.payloads import PayloadWriter
from riverrun.console.messages.schemas import (
    PAUSE_SECONDS,
    URL,
    RegistryDecoder,
    registry_decoder,
)
from riverrun.console.messages.streams import FoundRecord
from riverrun.records.record import Record
from riverrun.registry.catalog import RegistryCatalog
from riverrun.registry.rendering import JsonRenderer
from tests.registry.serializers import avro_serializer, json_serializer
from tests.registry.server import RegistryServer, serve_registry
from tests.registry.test_client import client_of

AVRO = {"type": "record", "name": "R", "fields": [{"name": "price", "type": "long"}]}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serve_registry() as server:
        yield server


def found(*values: bytes | None) -> list[FoundRecord]:
    return [
        FoundRecord(0, Record(offset, 1, None, value), 0, -1, False, False)
        for offset, value in enumerate(values)
    ]


def avro_value(registry: RegistryServer) -> bytes:
    return avro_serializer(registry.url, "t", json.dumps(AVRO))({"price": 5})


def test_payloads_with_a_registered_schema_are_json(registry: RegistryServer) -> None:
    avro = avro_value(registry)
    schema = '{"type": "object", "title": "T"}'
    as_json = json_serializer(registry.url, "j", schema)({"a": 1})
    unknown = b"\x00\x00\x00\x00\x63\x02"
    decoder = registry_decoder({URL: registry.url}, {})
    assert decoder is not None
    records = found(avro, as_json, unknown, b"text", None)
    prepared = asyncio.run(decoder.prepare(records))
    writer = PayloadWriter("auto", prepared)
    shown = [message.value for message in map(writer.message, records)]
    assert shown[0] is not None and (shown[0].format, shown[0].text) == ("avro", '{"price":5}')
    assert shown[1] is not None and (shown[1].format, shown[1].text) == ("json", '{"a":1}')
    assert shown[2] is not None and (shown[2].format, shown[2].schema_id) == ("hex", 99)
    assert shown[3] is not None and shown[3].format == "text"
    assert shown[4] is None


def test_registry_that_does_not_respond_is_left_alone_for_a_while(
    registry: RegistryServer,
) -> None:
    avro = avro_value(registry)
    registry.faults = [(500, {})] * 100
    now = [100.0]
    catalog = RegistryCatalog(
        client_of(registry.url), now=lambda: now[0], pause=lambda _seconds: None
    )
    decoder = RegistryDecoder(catalog, JsonRenderer(catalog), now=lambda: now[0])

    def decoded() -> bool:
        prepared = asyncio.run(decoder.prepare(found(avro)))
        return prepared.decoded(avro) is not None

    assert not decoded()
    asked = len(registry.requests)
    assert not decoded()
    assert len(registry.requests) == asked
    registry.faults = []
    now[0] += PAUSE_SECONDS + 1
    assert decoded()


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://x"])
def test_console_without_a_usable_registry_has_no_decoder(url: str) -> None:
    assert registry_decoder({URL: url}, {}) is None


def test_registry_may_be_named_by_the_environment(registry: RegistryServer) -> None:
    assert registry_decoder({}, {"RIVERRUN_REGISTRY": registry.url}) is not None
