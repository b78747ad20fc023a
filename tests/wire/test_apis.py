"""The table of APIs matches kio's schemas, and the checked-in messages match their generator."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from riverrun.wire.apis import ALL_APIS, APIS, ApiKey

ROOT = Path(__file__).parents[2]


def test_names_versions_and_flexibility_match_kio() -> None:
    assert {key: api.name for key, api in ALL_APIS.items()} == dict(api_key_map)
    for key, api in ALL_APIS.items():
        versions = sorted(schema_name_map[api.name])
        if key == ApiKey.INIT_PRODUCER_ID:
            assert versions.pop() == 6, "the version that is unstable in Kafka"
        assert (api.min_version, api.max_version) == (versions[0], versions[-1])
        for version in versions:
            assert load_request_schema(key, version).__flexible__ == api.is_flexible(version)
            assert load_response_schema(key, version).__flexible__ == api.is_flexible(version)


def test_produce_is_advertised_from_zero_and_served_from_three() -> None:
    produce = APIS[ApiKey.PRODUCE]
    assert produce.advertised_min_version == 0
    assert [version for version in range(-1, 16) if produce.serves(version)] == list(range(3, 14))
    others = [api for key, api in ALL_APIS.items() if key != ApiKey.PRODUCE]
    assert all(api.advertised_min_version == api.min_version for api in others)


def test_titles_match_kafkas_documentation() -> None:
    assert APIS[ApiKey.LIST_OFFSETS].title == "ListOffsets"
    assert APIS[ApiKey.OFFSET_FOR_LEADER_EPOCH].title == "OffsetForLeaderEpoch"


def test_generated_messages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    path = ROOT / "tools" / "generate_messages.py"
    spec = importlib.util.spec_from_file_location("generate_messages", path)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = generator  # dataclasses look there for their types
    spec.loader.exec_module(generator)
    tree = {file.name: file.read_text() for file in generator.TARGET.glob("*.py")}
    assert generator.generate() == tree
