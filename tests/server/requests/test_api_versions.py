"""ApiVersions: the APIs and features, and invalid requests."""

import asyncio

import pytest
from msgspec import structs

from riverrun.model.errors import ErrorCode
from riverrun.wire.apis import APIS, FEATURE_OF, ApiKey
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersionsResponse
from tests.server.requests.admin_node import Node

GOOD = ApiVersionsRequest(client_software_name="a.b-c", client_software_version="1.0-x")


def ask(node: Node, version: int, request: ApiVersionsRequest = GOOD) -> ApiVersionsResponse:
    response: ApiVersionsResponse = asyncio.run(node.ask(ApiKey.API_VERSIONS, version, request))
    return response


@pytest.mark.parametrize("version", range(5))
def test_every_served_api_is_listed_with_its_versions(version: int) -> None:
    response = ask(Node(), version)
    assert response.error_code is ErrorCode.NONE
    assert {one.api_key: (one.min_version, one.max_version) for one in response.api_keys} == {
        key: (0 if key == ApiKey.PRODUCE else api.min_version, api.max_version)
        for key, api in APIS.items()
        if key not in FEATURE_OF
    }


def test_apis_of_a_feature_are_listed_while_it_is_finalised() -> None:
    node = Node()
    node.log.current = structs.replace(
        node.log.current, features={**node.log.current.features, "group.version": 1}
    )
    listed = [one.api_key for one in ask(node, 4).api_keys]
    assert all(key in listed for key in FEATURE_OF)


def test_features_are_listed_from_version_3_and_level_0_from_version_4() -> None:
    node = Node()
    assert ask(node, 2).supported_features == ()
    assert [one.name for one in ask(node, 3).supported_features] == ["metadata.version"]
    newest = ask(node, 4)
    assert "eligible.leader.replicas.version" in [one.name for one in newest.supported_features]
    finalized = {one.name: one.max_version_level for one in newest.finalized_features}
    assert finalized == {**node.log.current.features, "kraft.version": 1}
    assert newest.finalized_features_epoch == node.log.current.offset


@pytest.mark.parametrize(
    ("name", "version"),
    [("", ""), ("a b", "1"), ("abc", "1 2"), ("-a", "1"), ("a-", "1"), ("é", "1"), ("a\n", "1")],
)
def test_invalid_software_name_is_refused(name: str, version: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    response = ask(Node(), 3, request)
    assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, ())


def test_response_is_cached_until_the_image_changes() -> None:
    node = Node()

    def written() -> bytes:
        return asyncio.run(node.written(ApiKey.API_VERSIONS, 4, GOOD))

    first = written()
    assert written() is first
    node.log.current = Node(given={"num.partitions": "2"}).log.current
    assert written() is not first
