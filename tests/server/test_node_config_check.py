"""A broker refuses directories and certificates that it cannot use, and forwards no request."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.cluster.configs.alter_configs import ConfigOperation
from riverrun.metadata.image import Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.settings import SettingError
from riverrun.security.principal import ANONYMOUS
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.node_config_check import NodeConfigCheck
from riverrun.server.requests import incremental_alter_configs
from riverrun.server.settings import NodeSettings
from riverrun.wire.apis import ALL_APIS, Api, ApiKey
from riverrun.wire.codec import encode_response
from riverrun.wire.messages import alter_configs_request as replacing
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.cluster.fakes import replayed
from tests.server.access import OPEN_ACCESS

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC, BROKER = 2, 4
CONTEXT = RequestContext(1, 0, None, "127.0.0.1", "", 0, ANONYMOUS)
INCREMENTAL = ALL_APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS]


class Forwarded:
    """Answers like the active controller, with bytes if it is another node."""

    def __init__(self, *, is_remote: bool = False) -> None:
        self.names: list[str] = []
        self._is_remote = is_remote

    async def forward(self, api: Api, context: RequestContext, request: Any) -> Any:
        self.names += [one.resource_name for one in request.resources]
        answer = incremental_alter_configs.failed(request, ErrorCode.NONE, None)
        if self._is_remote:
            return encode_response(api.key, context.api_version, answer)
        return answer


def check(forwarded: Forwarded, access: Any = OPEN_ACCESS) -> NodeConfigCheck:
    settings = NodeSettings.from_texts({"node.id": "1", "log.dirs": "/data"})
    stored = ConfigRecord(resource_type=BROKER, resource_name="1", name=CHAIN, value="chain")
    services: Any = SimpleNamespace(
        settings=settings,
        access=access,
        security=Security(),
        metadata=SimpleNamespace(current=replayed(Image(), [stored])),
    )
    return NodeConfigCheck(services, forwarded.forward)


LOCATION = "listener.name.ssl.ssl.keystore.location"
CHAIN = "listener.name.ssl.ssl.keystore.certificate.chain"


class Security:
    """Has one listener, which needs a readable file or a chain."""

    def check(self, texts: Mapping[str, str], *, changed: Collection[str]) -> None:
        assert dict.fromkeys(changed), "only called for changes of listeners"
        if texts.get(LOCATION) == "/bad" or not (texts.get(LOCATION) or texts.get(CHAIN)):
            raise SettingError("ssl.keystore.location", "", "cannot read it")


def changed(
    value: str | None, operation: int = SET, *, of: str = LOCATION, node: str = "1"
) -> AlterConfigsResource:
    change = AlterableConfig(name=of, config_operation=operation, value=value)
    return AlterConfigsResource(resource_type=BROKER, resource_name=node, configs=(change,))


@pytest.mark.parametrize("resource", [changed("/bad"), changed(None, DELETE, of=CHAIN)])
def test_unusable_certificate_is_refused(resource: AlterConfigsResource) -> None:
    """The stored settings of the node count too."""
    forwarded = Forwarded()
    code, message = altered(check(forwarded), resource)["1"]
    assert code is ErrorCode.INVALID_REQUEST
    assert "cannot read it" in message
    assert forwarded.names == []


@pytest.mark.parametrize(
    "resource",
    [
        changed("/good"),
        changed(None, DELETE),
        changed("/bad", node="2"),
        changed("5", of="log.cleaner.threads"),
    ],
)
def test_usable_certificates_and_those_of_other_nodes_are_forwarded(
    resource: AlterConfigsResource,
) -> None:
    forwarded = Forwarded()
    assert altered(check(forwarded), resource)[resource.resource_name][0] is ErrorCode.NONE
    assert forwarded.names == [resource.resource_name]


class NoRights:
    is_enabled = True

    def require_cluster(self, *_: object) -> None:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def cordon(
    value: str | None, operation: int = SET, *, name: str = "1", kind: int = BROKER
) -> AlterConfigsResource:
    change = AlterableConfig(name="cordoned.log.dirs", config_operation=operation, value=value)
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=(change,))


def altered(made: NodeConfigCheck, *resources: AlterConfigsResource) -> dict[str, tuple[Any, Any]]:
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    response = asyncio.run(made.forward(INCREMENTAL, CONTEXT, request))
    return {row.resource_name: (row.error_code, row.error_message) for row in response.responses}


@pytest.mark.parametrize("operation", [SET, APPEND])
@pytest.mark.parametrize("name", ["1", ""])
def test_directory_of_another_node_is_refused(operation: int, name: str) -> None:
    forwarded = Forwarded()
    result = altered(check(forwarded), cordon("/data,/other", operation, name=name))
    code, message = result[name]
    assert code is ErrorCode.INVALID_REQUEST
    assert "/other is not the data directory /data, nor *" in message
    assert forwarded.names == []


@pytest.mark.parametrize(
    "resource",
    [
        cordon("/data"),
        cordon("*", name=""),
        cordon("/other", SUBTRACT),
        cordon(None, DELETE),
        cordon("/other", name="2"),
        cordon("/other", kind=TOPIC),
    ],
)
def test_other_changes_are_forwarded(resource: AlterConfigsResource) -> None:
    forwarded = Forwarded()
    assert altered(check(forwarded), resource)[resource.resource_name][0] is ErrorCode.NONE
    assert forwarded.names == [resource.resource_name]


@pytest.mark.parametrize("is_remote", [False, True])
def test_other_resources_of_the_request_are_changed(is_remote: bool) -> None:
    forwarded = Forwarded(is_remote=is_remote)
    result = altered(check(forwarded), cordon("/other"), cordon("x", kind=TOPIC, name="t"))
    assert {name: code for name, (code, _) in result.items()} == {
        "t": ErrorCode.NONE,
        "1": ErrorCode.INVALID_REQUEST,
    }
    assert forwarded.names == ["t"]


def test_principal_without_rights_does_not_learn_the_path() -> None:
    forwarded = Forwarded()
    altered(check(forwarded, NoRights()), cordon("/other"))
    assert forwarded.names == ["1"], "the controller refuses it"


def test_replacing_request_is_checked_too() -> None:
    row = replacing.AlterableConfig(name="cordoned.log.dirs", value="/other")
    resource = replacing.AlterConfigsResource(
        resource_type=BROKER, resource_name="1", configs=(row,)
    )
    request = replacing.AlterConfigsRequest(resources=(resource,), validate_only=True)
    made = check(Forwarded())
    response = asyncio.run(made.forward(ALL_APIS[ApiKey.ALTER_CONFIGS], CONTEXT, request))
    assert [one.error_code for one in response.responses] == [ErrorCode.INVALID_REQUEST]
