"""Envelope, version 0: a request that a broker forwards to the active controller (KIP-590).

Behaviour:

* The request inside is handled as if the client had sent it here. Its response returns as bytes.
* The response has the metadata offset up to which this node has published, in a tagged field of our
  own. The broker responds to its client when it has published as much.
* Only requests for the controller may be forwarded.
* If this node is not the active controller any more, the envelope itself fails, not the response
  inside. The broker then looks for the next controller.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.aio import discard_result
from riverrun.server.dispatch.context import CONTROLLER, Peer, RequestContext
from riverrun.server.dispatch.forwarding import decode_principal
from riverrun.server.dispatch.router import Call, Frame, Refused, Router
from riverrun.server.services import NodeServices
from riverrun.wire.apis import FORWARDED
from riverrun.wire.headers import LENGTH
from riverrun.wire.messages.envelope_request import EnvelopeRequest
from riverrun.wire.messages.envelope_response import EnvelopeResponse
from riverrun.wire.primitives import MalformedRequest

_KEY = struct.Struct(">h")


class Envelopes:
    """The handler of Envelope requests."""

    def __init__(self, router: Router) -> None:
        """``router`` serves the enclosed requests."""
        self._router = router

    async def handle(
        self, services: NodeServices, context: RequestContext, request: EnvelopeRequest
    ) -> EnvelopeResponse:
        if not services.metadata.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        data = request.request_data
        if len(data) < _KEY.size or _KEY.unpack_from(data)[0] not in FORWARDED:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        try:
            peer = Peer(
                _host(request.client_host_address),
                CONTROLLER,
                context.connection_id,
                decode_principal(request.request_principal or b""),
            )
            response = self._router.handle(memoryview(data), peer)
            if isinstance(response, Call):
                response = await self._finished(response)
        except MalformedRequest as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        except Refused as error:
            if error.kind == "bug":
                raise
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        assert response is not None, "a forwarded request without a response"
        return EnvelopeResponse(
            error_code=ErrorCode.NONE,
            response_data=_joined(response)[LENGTH.size :],
            metadata_offset=services.metadata.current.offset,
        )

    async def _finished(self, call: Call) -> Frame | None:
        assert call.wait is not None, "a call that does not wait has a response"
        done = asyncio.ensure_future(call.wait)
        # A stop may cancel this wait, but not the call.
        done.add_done_callback(discard_result)
        await asyncio.wait((done,))
        error = None if done.cancelled() else done.exception()
        if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER:
            raise error
        return self._router.finish(call, done)


def _joined(frame: Frame) -> bytes:
    return frame if isinstance(frame, bytes) else b"".join(frame)


def _host(address: bytes) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "The address does not have 4 or 16 bytes."
        ) from None
