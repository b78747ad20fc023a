"""Fetch: whole batches from the page cache to the socket, or a wait until there are some.

Behaviour:

* Consumers read committed records from the leader, or from a follower (KIP-392);
  see ``fetch/consumer_fetch.py``.
* Followers read up to the log end offset, and acknowledge by it; see ``fetch/replica_fetch.py``.
* The response leaves when it has min.bytes, an error, or no time to wait; see
  ``fetch/long_poll.py``.

Versions 4 to 18:

* v7: incremental fetch sessions (KIP-227)
* v9: leader epochs
* v11: the client's rack
* v12: flexible; diverging epochs
* v13: topic ids
* v15: replica state
* v16: endpoints of new leaders (KIP-951)
* v17: directory ids
* v18: the high watermark that a follower has
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from riverrun.model.errors import KafkaError
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.fetch.consumer_fetch import fetch_for_consumer
from riverrun.server.fetch.replica_fetch import fetch_for_replica
from riverrun.wire.fetch import encode_fetch_response, parse_fetch

if TYPE_CHECKING:
    from riverrun.ports.files import Buffer
    from riverrun.server.services import BrokerServices


def handle_frame(
    services: BrokerServices, context: RequestContext, buffer: memoryview, at: int
) -> list[Buffer] | Awaitable[list[Buffer]]:
    version = context.api_version
    call = parse_fetch(buffer, at, version)
    try:
        if call.replica_id >= 0:
            return fetch_for_replica(services, context, call)
        return fetch_for_consumer(services, context, call)
    except KafkaError as error:
        return encode_fetch_response(version, [], error_code=error.code)
