"""Client requests that any broker accepts and only the active controller can serve (KIP-590).

The request travels in an envelope with its own bytes, its principal and the client's address, so
the controller treats it as if the client had sent it there. ``requests/envelope.py`` unpacks it.

The client is answered when this node has published the change too. Its next request usually comes
to this node, and must see the topic that it created or the value that it set.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING, Any, Final

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.principal import NODE, Principal
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Router
from riverrun.wire.apis import ALL_APIS, Api, ApiKey
from riverrun.wire.codec import decode_response, encode_request
from riverrun.wire.headers import (
    LENGTH,
    has_flexible_response_header,
    read_response_header,
    request_frame,
)
from riverrun.wire.messages.create_topics_request import CreateTopicsRequest
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
from riverrun.wire.messages.envelope_request import EnvelopeRequest
from riverrun.wire.primitives import MalformedRequest, read_compact_text, write_compact_text

if TYPE_CHECKING:
    from riverrun.server.services import NodeServices

FORWARD_SECONDS_MAX: Final = 20.0
"""Below the request timeout of clients, so that they receive the reason."""
FORWARD_SECONDS_MIN: Final = 1.0
"""Longer than the choice of a new controller takes."""
DESCRIBE_QUORUM_SECONDS_MAX: Final = 3.0
"""Longer than an election takes, but short: a quorum without a leader should be reported soon."""
IMAGE_SECONDS_MAX: Final = 2.0
"""How long a response waits for this node's own image. A node that is further behind answers
anyway: the change is committed."""
READ_ONLY: Final = frozenset({ApiKey.DESCRIBE_QUORUM})
PRINCIPAL_VERSION: Final = struct.Struct(">h")


class Forwarder:
    """Passes requests to the active controller, which may be this node."""

    def __init__(self, services: NodeServices, router: Router, channel: ControllerChannel) -> None:
        """``router`` serves the requests while this node is the active controller."""
        self._services = services
        self._router = router
        self._channel = channel

    async def forward(self, api: Api, context: RequestContext, request: Any) -> Any:
        """The active controller's response: a message, or the encoded bytes of one.

        Returns when this node's own image has the change, or after ``IMAGE_SECONDS_MAX``.
        """
        if self._services.metadata.is_active:
            try:
                # The controller responds when the change is published here.
                return await self._router.respond(api.key, context, request)
            except KafkaError as error:
                # This node lost the leadership meanwhile. The client did not choose this
                # controller and would not retry, so the request goes to the next one.
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
        return await self._forward(api, context, request)

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Create topics on behalf of this broker: topics that are created on first use."""
        api = ALL_APIS[ApiKey.CREATE_TOPICS]
        context = RequestContext(api.max_version, 0, None, "127.0.0.1", "", 0, NODE)
        response = await self.forward(api, context, request)
        if not isinstance(response, bytes):
            assert isinstance(response, CreateTopicsResponse), f"unexpected {type(response)}"
            return response
        decoded: CreateTopicsResponse = decode_response(api.key, api.max_version, response)
        return decoded

    async def _forward(self, api: Api, context: RequestContext, request: Any) -> bytes:
        version = context.api_version
        frame = request_frame(
            api,
            version,
            context.correlation_id,
            context.client_id,
            encode_request(api.key, version, request),
        )
        envelope = EnvelopeRequest(
            request_data=frame[LENGTH.size :],
            request_principal=encode_principal(context.principal),
            client_host_address=_packed_address(context.client_host),
        )
        response = await self._channel.request(
            ApiKey.ENVELOPE, envelope, timeout_s=_forward_seconds(api, request), about=api.title
        )
        if response.error_code is not ErrorCode.NONE:
            raise KafkaError(response.error_code)
        if api.key not in READ_ONLY:
            await self._services.image_waits.until(
                lambda image: image.offset >= response.metadata_offset, IMAGE_SECONDS_MAX
            )
        data: bytes = response.response_data
        is_flexible = has_flexible_response_header(api, version)
        _, at = read_response_header(data, is_flexible=is_flexible)
        return data[at:]


def _forward_seconds(api: Api, request: Any) -> float:
    """How long a request is sent again until a controller answers.

    A topic whose creation is repeated after the client gave up could appear after its deletion.
    """
    if api.key is ApiKey.DESCRIBE_QUORUM:
        return DESCRIBE_QUORUM_SECONDS_MAX
    timeout_ms = getattr(request, "timeout_ms", 0)
    if timeout_ms <= 0:  # librdkafka's default
        return FORWARD_SECONDS_MAX
    return min(max(timeout_ms / 1000, FORWARD_SECONDS_MIN), FORWARD_SECONDS_MAX)


def encode_principal(principal: Principal) -> bytes:
    """A principal as Kafka's default builder writes it (DefaultPrincipalData, version 0)."""
    out = bytearray(PRINCIPAL_VERSION.pack(0))
    write_compact_text(out, principal.kind)
    write_compact_text(out, principal.name)
    out.append(principal.is_token)
    return bytes(out + b"\0")


def decode_principal(data: bytes) -> Principal:
    """Raises ``MalformedRequest``."""
    if len(data) < PRINCIPAL_VERSION.size or PRINCIPAL_VERSION.unpack_from(data)[0] != 0:
        raise MalformedRequest("the forwarded principal has an unknown version")
    kind, at = read_compact_text(data, PRINCIPAL_VERSION.size, len(data))
    name, at = read_compact_text(data, at, len(data))
    if at >= len(data):
        raise MalformedRequest("the forwarded principal is cut off")
    return Principal(kind, name, is_token=data[at] != 0)


def _packed_address(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return ipaddress.IPv4Address(0).packed
