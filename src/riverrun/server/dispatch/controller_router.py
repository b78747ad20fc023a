"""The router of the controller listener, with the one for requests inside envelopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverrun.server.dispatch.router import Router
from riverrun.server.requests import quorum_fetch
from riverrun.server.requests.envelope import Envelopes
from riverrun.wire.apis import CONTROLLER_ROUTES, FORWARDED, ApiKey

if TYPE_CHECKING:
    from riverrun.server.services import NodeServices


def build_controller_router(
    services: NodeServices, *, on_bug: Callable[[BaseException], None]
) -> Router:
    forwarded = Router(
        services,
        metrics=services.metrics,
        clock=services.clock,
        apis={key: api for key, api in CONTROLLER_ROUTES.items() if key in FORWARDED},
        on_bug=on_bug,
        access=services.access.check,
    )
    return Router(
        services,
        metrics=services.metrics,
        clock=services.clock,
        apis=CONTROLLER_ROUTES,
        modules={ApiKey.FETCH: quorum_fetch, ApiKey.ENVELOPE: Envelopes(forwarded)},
        on_bug=on_bug,
        access=services.access.check,
    )
