"""Servers with logins and access control.

Each has a second listener, on which users log in by PLAIN with their name as password, or by SCRAM
with a delegation token. Clients of the first listener are anonymous, and may do everything. The
node and users log in by PLAIN on the controller listener.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from riverrun.model.errors import ErrorCode
from riverrun.security.scram import ScramClient, ScramMechanism
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import decode_response
from riverrun.wire.headers import has_flexible_response_header, read_response_header
from tests.plain_client import PlainClient
from tests.processes import ApacheKafka, Server, executable, free_ports

USERS = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal", "ivy")
LOGIN_LISTENER = "SASL_PLAINTEXT"
PORTS = 3
NODE = "node"
"""The user that the node itself is."""
_PREFIX = f"listener.name.{LOGIN_LISTENER.lower()}"
_MODULE = "org.apache.kafka.common.security"
_PASSWORDS = " ".join(f'user_{name}="{name}"' for name in (*USERS, NODE))
SECURED_SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:ANONYMOUS;User:{NODE}",
    "delegation.token.secret.key": "the key of both servers",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,"
    "SASL_PLAINTEXT:SASL_PLAINTEXT",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": f"{_MODULE}.plain.PlainLoginModule "
    f'required username="{NODE}" password="{NODE}" {_PASSWORDS};',
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    f"{_PREFIX}.plain.sasl.jaas.config": f"{_MODULE}.plain.PlainLoginModule required {_PASSWORDS};",
    f"{_PREFIX}.scram-sha-256.sasl.jaas.config": f"{_MODULE}.scram.ScramLoginModule required;",
}


def _listeners(port: int) -> str:
    names = ("PLAINTEXT", "CONTROLLER", LOGIN_LISTENER)
    return ",".join(f"{name}://127.0.0.1:{port + place}" for place, name in enumerate(names))


class SecuredKafka(ApacheKafka):
    def listeners(self, port: int) -> str:
        return _listeners(port)


class SecuredRiverrun(Server):
    peer = "riverrun"

    def start(self) -> None:
        port = free_ports(PORTS)
        self.address = ("127.0.0.1", port)
        self.data = self.folder / "data"
        self.restart()

    def restart(self) -> None:
        settings = {**self.settings, "listeners": _listeners(self.address[1])}
        words = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
        start = [executable(), "start", "--node-id", "1", "--data", str(self.data), *words]
        self.pid = self.spawn(start).pid
        self.wait_ready()


@contextlib.contextmanager
def serve_secured(folder: Path, settings: dict[str, str], peer: str) -> Iterator[Server]:
    kind = SecuredKafka if peer == "kafka" else SecuredRiverrun
    server = kind(folder, {**settings, **SECURED_SETTINGS})
    try:
        server.start()
        yield server
    finally:
        server.stop_all()
        shutil.rmtree(folder, ignore_errors=True)


def login_address(address: tuple[str, int]) -> tuple[str, int]:
    """The second listener of a server."""
    return address[0], address[1] + 2


def controller_address(address: tuple[str, int]) -> tuple[str, int]:
    return address[0], address[1] + 1


def log_in(client: PlainClient, user: str) -> None:
    last = _send(client, "PLAIN", f"\0{user}\0{user}".encode())
    assert last["error_code"] == "NONE", last


def log_in_by_token(client: PlainClient, token_id: str, hmac: bytes) -> Any:
    """The server's last response."""
    password = base64.b64encode(hmac).decode()
    scram = ScramClient(ScramMechanism.SHA_256, token_id, password, "nonce", is_token=True)
    first = _send(client, "SCRAM-SHA-256", scram.first)
    if first["error_code"] != "NONE":
        return first
    return _authenticate(client, scram.final(first["auth_bytes"]))


def parse_by_own_codec(api: str, version: int, frame: bytes) -> Any:
    """A response that kio cannot read, as plain values: with times before 1970, which failed
    requests about tokens have, or with unknown tagged fields, which envelopes of riverrun have."""
    key = ApiKey[api.upper()]
    is_flexible = has_flexible_response_header(ALL_APIS[key], version)
    _, at = read_response_header(frame, is_flexible=is_flexible)
    return _plain(decode_response(key, version, frame[at:]))


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return {name.removesuffix("_ms"): _plain(item) for name, item in asdict(value).items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, ErrorCode) else value


def _send(client: PlainClient, mechanism: str, message: bytes) -> Any:
    shaken = client.request("sasl_handshake", 1, {"mechanism": mechanism})
    assert shaken["error_code"] == "NONE", shaken
    return _authenticate(client, message)


def _authenticate(client: PlainClient, message: bytes) -> Any:
    return client.request("sasl_authenticate", 2, {"auth_bytes": message})
