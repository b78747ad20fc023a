"""Messages of riverrun's own APIs round-trip; truncated or invalid ones are rejected."""

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.model.errors import ErrorCode
from riverrun.wire import codec
from riverrun.wire.apis import ALL_APIS, APIS, CONTROLLER_APIS, PRIVATE_APIS, ROUTES, ApiKey
from riverrun.wire.primitives import MalformedRequest
from riverrun.wire.private.describe_node_request import DescribeNodeRequest
from riverrun.wire.private.describe_node_response import DescribeNodeResponse
from riverrun.wire.private.describe_quota_use_request import DescribeQuotaUseRequest
from riverrun.wire.private.describe_quota_use_response import (
    DescribeQuotaUseResponse,
    MeasuredUse,
)
from riverrun.wire.private.discover_node_request import DiscoverNodeRequest
from riverrun.wire.private.discover_node_response import (
    DiscoverNodeResponse,
    NamedNode,
    NodeAddress,
)
from riverrun.wire.private.form_cluster_request import FirstVoter, FormClusterRequest
from riverrun.wire.private.form_cluster_response import FormClusterResponse

DISCOVER, FORM, USE = ApiKey.DISCOVER_NODE, ApiKey.FORM_CLUSTER, ApiKey.DESCRIBE_QUOTA_USE
NODE = ApiKey.DESCRIBE_NODE
ADDRESS = NodeAddress(host="node-1", port=65535)
MESSAGES: list[tuple[ApiKey, str, Any]] = [
    (DISCOVER, "request", DiscoverNodeRequest(node_id=-1, directory_id=None)),
    (DISCOVER, "request", DiscoverNodeRequest(node_id=3, directory_id=UUID(int=7))),
    (
        DISCOVER,
        "response",
        DiscoverNodeResponse(node_id=1, directory_id=UUID(int=7), is_controller=False),
    ),
    (
        DISCOVER,
        "response",
        DiscoverNodeResponse(
            node_id=1,
            directory_id=UUID(int=7),
            is_controller=True,
            cluster_id="one",
            promised="two",
            controller=(ADDRESS,),
            named=(NamedNode(node_id=1, directory_id=UUID(int=7)),),
            controllers=(ADDRESS, ADDRESS),
            namesakes=(ADDRESS,),
        ),
    ),
    (
        FORM,
        "request",
        FormClusterRequest(
            cluster_id="one",
            proposed_ms=5,
            voters=(FirstVoter(node_id=1, directory_id=UUID(int=7), host="a", port=1),),
            is_agreed=True,
        ),
    ),
    (FORM, "response", FormClusterResponse(error_code=ErrorCode.NONE)),
    (
        FORM,
        "response",
        FormClusterResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="no"),
    ),
    (NODE, "request", DescribeNodeRequest(subject="timeline", query='{"limit": 5}')),
    (NODE, "response", DescribeNodeResponse(content=b"{}")),
    (
        NODE,
        "response",
        DescribeNodeResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="no"),
    ),
    (USE, "request", DescribeQuotaUseRequest()),
    (
        USE,
        "response",
        DescribeQuotaUseResponse(
            uses=(MeasuredUse(key="producer_byte_rate", user="ann", client_id="", rate=1.5),)
        ),
    ),
]


def functions(side: str) -> tuple[Any, Any]:
    if side == "request":
        return codec.encode_request, codec.decode_request
    return codec.encode_response, codec.decode_response


@pytest.mark.parametrize(("key", "side", "message"), MESSAGES)
def test_messages_round_trip_and_truncated_ones_are_rejected(
    key: ApiKey, side: str, message: Any
) -> None:
    encode, decode = functions(side)
    data = encode(key, 0, message)
    assert decode(key, 0, data) == message
    for cut in range(len(data)):
        with pytest.raises(MalformedRequest):
            decode(key, 0, data[:cut])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([DISCOVER, FORM, NODE]), st.binary(max_size=100))
def test_garbage_raises_only_malformed_request(key: ApiKey, garbage: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        codec.decode_request(key, 0, garbage)


def test_private_apis_are_not_advertised() -> None:
    for key in PRIVATE_APIS:
        assert key not in ALL_APIS
        assert key not in APIS
        assert key not in CONTROLLER_APIS
    assert FORM not in ROUTES
