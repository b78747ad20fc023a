"""riverrun consume --registry prints keys and values that name a registered schema as JSON."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.commands import Cli
from tests.compatibility.confluent import producer
from tests.registry.serializers import (
    avro_serializer,
    json_serializer,
    protobuf_message,
    protobuf_serializer,
)
from tests.registry.server import RegistryServer, serve_registry

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "price", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
    }
)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serve_registry() as server:
        yield server


def send(cli: Cli, topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    sender = producer(cli.bootstrap)
    for key, value in records:
        sender.produce(topic, value, key=key, partition=0)
    assert sender.flush(20) == 0


def read(cli: Cli, topic: str, registry: RegistryServer, *words: str) -> tuple[list[str], str]:
    done = cli.done(
        "consume", topic, "--registry", registry.url, "--from-beginning", "--until-end", *words
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "backslashreplace").splitlines(), done.stderr.decode()


def test_values_of_each_format_are_printed_as_json(
    cli: Cli, name: str, registry: RegistryServer
) -> None:
    message = protobuf_message('syntax = "proto3"; message M { string s = 1; }')
    avro = avro_serializer(registry.url, name, ORDER)({"price": 5, "note": "ü"})
    protobuf = protobuf_serializer(registry.url, f"{name}-p", message)(message(s="x"))
    text = json_serializer(registry.url, f"{name}-j", '{"title": "t", "type": "object"}')({"a": 1})
    send(cli, name, [(avro, avro), (b"k", protobuf), (None, text), (b"k", b"plain"), (b"k", None)])
    lines, notes = read(cli, name, registry)
    assert lines == ['{"price":5,"note":"ü"}', '{"s":"x"}', '{"a":1}', "plain", ""]
    assert notes == ""
    lines, _ = read(cli, name, registry, "--json")
    rows = [json.loads(line) for line in lines]
    assert [(row["key"], row["value"]) for row in rows] == [
        ({"price": 5, "note": "ü"}, {"price": 5, "note": "ü"}),
        ("k", {"s": "x"}),
        (None, {"a": 1}),
        ("k", "plain"),
        ("k", None),
    ]
    lines, _ = read(cli, name, registry, "--format", "%k=%v\\n")
    assert lines[0] == '{"price":5,"note":"ü"}={"price":5,"note":"ü"}'


def test_value_that_cannot_be_decoded_is_printed_as_it_is_with_a_note(
    cli: Cli, name: str, registry: RegistryServer
) -> None:
    good = avro_serializer(registry.url, name, ORDER)({"price": 20, "note": None})
    unknown, truncated = b"\0\0\0\0\x63" + good[5:], good[:-1]
    send(cli, name, [(b"k", unknown), (b"k", truncated), (b"k", good)])
    lines, notes = read(cli, name, registry)
    assert lines[2] == '{"price":20,"note":null}'
    assert [line.encode() for line in lines[:2]] == [unknown, truncated]
    assert notes == (
        f"riverrun: {name}-0 offset 0: value not decoded: schema id 99 is unknown to the registry "
        f"{registry.url}\n"
    ), "the second note comes too soon after the first"
    lines, notes = read(cli, name, registry, "--json", "--quiet")
    assert (json.loads(lines[0])["value"].encode(), notes) == (unknown, "")


def test_registry_that_is_down_is_an_error_before_and_during_the_run(
    cli: Cli, name: str, registry: RegistryServer
) -> None:
    value = avro_serializer(registry.url, name, ORDER)({"price": 5, "note": None})
    send(cli, name, [(None, value)])
    down = cli.done("consume", name, "--registry", "http://me:secret@127.0.0.1:1", "--until-end")
    assert (down.returncode, down.stdout, down.stderr) == (
        3,
        b"",
        b"riverrun: the schema registry http://127.0.0.1:1 is unavailable: Connection refused\n",
    )
    refused = (503, {"error_code": 50301, "message": "no leader"})
    registry.faults = [(404, {"error_code": 40403}), *[refused] * 4]
    done = cli.done("consume", name, "--registry", registry.url, "--from-beginning", "--until-end")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.decode() == (
        f"riverrun: the schema registry {registry.url} is unavailable: HTTP 503 no leader\n"
    )


def test_registry_may_need_a_password(cli: Cli, name: str, registry: RegistryServer) -> None:
    value = avro_serializer(registry.url, name, ORDER)({"price": 5, "note": None})
    send(cli, name, [(None, value)])
    registry.user_info = "me:secret"
    words = ("consume", name, "--from-beginning", "--until-end", "--registry")
    refused = cli.done(*words, registry.url)
    assert refused.returncode == 3
    assert b"RIVERRUN_REGISTRY_USER_INFO" in refused.stderr
    assert cli.process(*words, registry.url.replace("//", "//me:secret@")).startswith("{")
    cli.env["RIVERRUN_REGISTRY_USER_INFO"] = "me:secret"
    try:
        assert cli.process(*words, registry.url).startswith("{")
    finally:
        del cli.env["RIVERRUN_REGISTRY_USER_INFO"]


def test_invalid_address_is_a_usage_error(cli: Cli, name: str) -> None:
    done = cli.done("consume", name, "--registry", "me:secret@host:8081")
    assert done.returncode == 2
    assert b"secret" not in done.stderr


def test_missing_extra_is_named_with_the_command(cli: Cli, name: str) -> None:
    code = (
        "import sys; sys.modules['fastavro'] = None; from riverrun.cli.__main__ import main;"
        f"sys.argv = ['riverrun', 'consume', {name!r}, '--registry', 'http://127.0.0.1:1']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "riverrun: --registry needs fastavro: pip install 'riverrun[registry]'\n"
    )
