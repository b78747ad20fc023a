"""What clients ask of any broker and only the active controller can answer (KIP-590).

The request travels in an envelope: its own bytes, who sent it and from where, so that the
controller judges it as if it had come from the client itself. ``requests/envelope.py`` opens it.
"""

from __future__ import annotations

import inspect
import ipaddress
import struct
from typing import TYPE_CHECKING, Any, Final

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicName
from riverrun.server.controller_link.channel import ControllerChannel
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Handle
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
from riverrun.wire.primitives import write_compact_text

if TYPE_CHECKING:
    from riverrun.server.services import NodeServices

FORWARD_SECONDS_MAX: Final = 20.0
"""Below the time after which clients give up, so that they hear why."""
LOOK_SECONDS_MAX: Final = 3.0
"""Longer than elections take: who asks how the quorum is should hear soon that nobody leads it."""
IMAGE_SECONDS_MAX: Final = 2.0
EXISTING: Final = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
PRINCIPAL_VERSION: Final = struct.Struct(">h")


class Forwarder:
    """Passes requests on to the active controller."""

    def __init__(self, services: NodeServices, channel: ControllerChannel) -> None:
        self._services = services
        self._channel = channel

    def forward(self, api: Api, context: RequestContext, request: Any, handle: Handle) -> Any:
        """The answer, or something to await: judged here when we are the controller."""
        if self._services.metadata.is_active:
            return self._judge(api, context, request, handle)
        return self._forward(api, context, request)

    async def _judge(self, api: Api, context: RequestContext, request: Any, handle: Handle) -> Any:
        """Here; by the next controller when we cease to be it, as for those that came over the
        network: clients would not ask again, for they never knew whom they asked."""
        try:
            answer = handle(self._services, context, request)
            return await answer if inspect.isawaitable(answer) else answer
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
        return await self._forward(api, context, request)

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """For this broker's own sake: topics that are made when they are first asked for.

        Returns when this node's own image knows them, so that a client can be told at once.
        """
        if self._services.metadata.is_active:
            try:
                return await self._services.controller.create_topics(request)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
        api = ALL_APIS[ApiKey.CREATE_TOPICS]
        context = RequestContext(api.max_version, 0, None, "127.0.0.1", "", 0)
        body = await self._forward(api, context, request)
        answer: CreateTopicsResponse = decode_response(api.key, api.max_version, body)
        made = [TopicName(t.name) for t in answer.topics if t.error_code in EXISTING]
        await self._services.image_waits.until(
            lambda image: all(name in image.topics_by_name for name in made), IMAGE_SECONDS_MAX
        )
        return answer

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
            request_principal=_anonymous(),
            client_host_address=_packed(context.client_host),
        )
        limit = LOOK_SECONDS_MAX if api.key == ApiKey.DESCRIBE_QUORUM else FORWARD_SECONDS_MAX
        answer = await self._channel.ask(
            ApiKey.ENVELOPE, envelope, timeout_s=limit, about=api.title
        )
        if answer.error_code is not ErrorCode.NONE:
            raise KafkaError(answer.error_code)
        data: bytes = answer.response_data
        is_flexible = has_flexible_response_header(api, version)
        _, at = read_response_header(data, is_flexible=is_flexible)
        return data[at:]


def _anonymous() -> bytes:
    """The principal of a connection without authentication, as Kafka's builder writes it."""
    out = bytearray(PRINCIPAL_VERSION.pack(0))
    write_compact_text(out, "User")
    write_compact_text(out, "ANONYMOUS")
    return bytes(out + b"\0\0")


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return ipaddress.IPv4Address(0).packed
