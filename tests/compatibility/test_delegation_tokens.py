"""Delegation tokens: Apache's tool and our client create them, and log in with them."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.security import client_security
from riverrun.model.errors import ErrorCode
from riverrun.model.properties import parse_properties
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_delegation_token_request import CreateDelegationTokenRequest
from riverrun.wire.messages.create_delegation_token_response import CreateDelegationTokenResponse
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_delegation_token_request import (
    DescribeDelegationTokenRequest,
)
from riverrun.wire.messages.expire_delegation_token_request import ExpireDelegationTokenRequest
from tests.compatibility.apache import ApacheTools
from tests.secure_node import SecureNode

SECRET_KEY = "a-key-that-all-nodes-have"
HMAC = re.compile(r"[A-Za-z0-9+/]{86}==")
TOOL = "DelegationTokenCommand"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
BROKER_RESOURCE = 4


class TokenNode(SecureNode):
    """A node with delegation tokens, and its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "node.log"
        settings = (f"delegation.token.secret.key={SECRET_KEY}", "log.level=debug")
        super().__init__(folder / "data", *settings, log=self.log)

    def token_properties(self, token_id: str, hmac: str, name: str = "token") -> str:
        """A file with the settings of a client that logs in with a token."""
        lines = Path(self.security["properties"]).read_text().splitlines()
        kept = [line for line in lines if not line.startswith("sasl.jaas.config")]
        login = f'username="{token_id}" password="{hmac}" tokenauth="true"'
        path = self.folder / f"{name}.properties"
        path.write_text("\n".join([*kept, f"sasl.jaas.config={MODULE} required {login};"]) + "\n")
        return str(path)

    def ask(self, key: ApiKey, message: Struct, properties: str | None = None) -> Any:
        """The response to a request of the administrator, or of another login."""
        texts = parse_properties(Path(properties or self.security["properties"]).read_text())

        async def work() -> Any:
            security = client_security(texts)
            async with ConnectionPool(
                parse_bootstrap(self.bootstrap), client_id="test", security=security
            ) as pool:
                return await pool.request(key, message)

        return asyncio.run(work())

    def create(self, properties: str | None = None) -> CreateDelegationTokenResponse:
        request = CreateDelegationTokenRequest(renewers=(), max_lifetime_ms=-1)
        made: CreateDelegationTokenResponse = self.ask(
            ApiKey.CREATE_DELEGATION_TOKEN, request, properties
        )
        return made


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenNode]:
    node = TokenNode(tmp_path_factory.mktemp("tokens"))
    yield node
    assert node.stop() == 0


@pytest.mark.slow
def test_a_client_with_a_token_has_the_rights_of_its_owner_but_makes_no_tokens(
    secure: TokenNode,
) -> None:
    made = secure.create()
    assert made.error_code is ErrorCode.NONE
    hmac = base64.b64encode(made.hmac).decode()
    properties = secure.token_properties(made.token_id, hmac)
    login = {"RIVERRUN_COMMAND_CONFIG": properties}
    created = secure.run("topics", "create", "of-a-token", environment=login)
    assert created.returncode == 0, created.stderr
    refused = secure.create(properties)
    assert refused.error_code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    expire = ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
    assert secure.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, expire).error_code is ErrorCode.NONE
    late = secure.run("topics", "list", environment=login)
    assert "the login failed" in late.stderr


@pytest.mark.slow
def test_secrets_are_neither_logged_nor_stored_nor_described(secure: TokenNode) -> None:
    made = secure.create()
    hmac = base64.b64encode(made.hmac).decode()
    properties = secure.token_properties(made.token_id, hmac)
    wrong = secure.token_properties(made.token_id, "wrong", "wrong")
    for path in (properties, wrong):
        secure.run("topics", "list", environment={"RIVERRUN_COMMAND_CONFIG": path})
    request = DescribeDelegationTokenRequest(owners=None)
    described = secure.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, request)
    assert made.hmac in [token.hmac for token in described.tokens]
    resource = DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name="1", configuration_keys=None
    )
    configs = secure.ask(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=(resource,)))
    values = {row.name: row.value for row in configs.results[0].configs}
    assert values["delegation.token.secret.key"] is None
    assert SECRET_KEY not in str(configs)
    text = secure.log.read_text()
    assert "login" in text, "the log does not have what is checked"
    for secret in (SECRET_KEY, hmac, made.hmac.hex()):
        assert secret not in text
    for stored in secure.folder.joinpath("data").rglob("*"):
        if stored.is_file():
            data = stored.read_bytes()
            assert made.hmac not in data and hmac.encode() not in data, stored


@pytest.mark.peer
def test_apaches_tool_and_java_clients(tools: ApacheTools, secure: TokenNode) -> None:
    at = ("--bootstrap-server", secure.bootstrap, "--command-config")
    admin = (*at, secure.security["properties"])
    renewer = ("--renewer-principal", "User:bob")
    made = tools.run(TOOL, *admin, "--create", "--max-life-time-period", "-1", *renewer).check()
    (hmac,) = HMAC.findall(made.text)
    shown = tools.run(TOOL, *admin, "--describe", "--owner-principal", "User:admin").check()
    (row,) = [line for line in shown.text.splitlines() if hmac in line]
    assert "User:admin" in row and "User:bob" in row
    token_id = row.split()[0]
    properties = secure.token_properties(token_id, hmac, "java")
    topic = ("--topic", "by-token")
    tools.run("TopicCommand", *at, properties, "--create", *topic).check()
    tools.run("ConsoleProducer", *at, properties, *topic, given="one\n").check()
    refused = tools.run(TOOL, *at, properties, "--create", "--max-life-time-period", "-1")
    assert "Delegation Token requests are not allowed" in refused.text
    change = ("--hmac", hmac)
    renewed = tools.run(TOOL, *admin, "--renew", "--renew-time-period", "3600000", *change)
    assert "Completed renew operation" in renewed.check().text
    expired = tools.run(TOOL, *admin, "--expire", "--expiry-time-period", "-1", *change)
    assert "Completed expire operation" in expired.check().text
    again = tools.run(TOOL, *admin, "--expire", "--expiry-time-period", "-1", *change)
    assert "DelegationTokenNotFoundException" in again.text
    late = tools.run("TopicCommand", *at, properties, "--list")
    assert "invalid credentials" in late.text
