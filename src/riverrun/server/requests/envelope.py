"""Envelope: a client's request that a broker has passed on (KIP-590).

What is inside is handled as if the client had sent it here, its answer goes back as bytes. Only
requests for the controller may travel so. When the controller has lost its office on the way, the
envelope says so, not the answer in it: the broker then looks for the next controller.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.aio import discard_result
from riverrun.server.dispatch.context import CONTROLLER, Peer, RequestContext
from riverrun.server.dispatch.router import Call, Frame, Refused
from riverrun.server.services import NodeServices
from riverrun.wire.apis import FORWARDED
from riverrun.wire.headers import LENGTH
from riverrun.wire.messages.envelope_request import EnvelopeRequest
from riverrun.wire.messages.envelope_response import EnvelopeResponse

_KEY = struct.Struct(">h")


async def handle(
    services: NodeServices, context: RequestContext, request: EnvelopeRequest
) -> EnvelopeResponse:
    if not services.metadata.is_active:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    data = request.request_data
    if len(data) < _KEY.size or _KEY.unpack_from(data)[0] not in FORWARDED:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    peer = Peer(_host(request.client_host_address), CONTROLLER, context.connection_id)
    try:
        answer = services.controller_router.handle(memoryview(data), peer)
        if isinstance(answer, Call):
            answer = await _awaited(services, answer)
    except Refused as error:
        if error.kind == "bug":
            raise
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    assert answer is not None, "requests for the controller have answers"
    return EnvelopeResponse(error_code=ErrorCode.NONE, response_data=_joined(answer)[LENGTH.size :])


async def _awaited(services: NodeServices, call: Call) -> Frame | None:
    assert call.wait is not None, "a call that does not wait has an answer"
    done = asyncio.ensure_future(call.wait)
    # A stop may cancel this wait, but not the call.
    done.add_done_callback(discard_result)
    await asyncio.wait((done,))
    error = None if done.cancelled() else done.exception()
    if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER:
        raise error
    return services.controller_router.finish(call, done)


def _joined(frame: Frame) -> bytes:
    return frame if isinstance(frame, bytes) else b"".join(frame)


def _host(address: bytes) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "No address of 4 or 16 bytes.") from None
