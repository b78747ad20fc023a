"""The routers of a node: of its client listeners, of its controller listener, and of the requests
inside envelopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverrun.server.dispatch.node_config_check import NodeConfigCheck
from riverrun.server.dispatch.router import Router, Throttling
from riverrun.server.requests import quorum_fetch
from riverrun.server.requests.envelope import Envelopes
from riverrun.server.tracing import build_tracer
from riverrun.wire.apis import CONTROLLER_ROUTES, FORWARDED, ApiKey

if TYPE_CHECKING:
    from riverrun.server.services import BrokerServices, NodeServices


def build_controller_router(
    services: NodeServices, *, on_bug: Callable[[BaseException], None]
) -> Router:
    # The broker that a client sent a request to records it, not the controller.
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
        audit=services.audit,
    )


def build_broker_router(
    services: BrokerServices, throttle: Throttling, *, on_bug: Callable[[BaseException], None]
) -> Router:
    return Router(
        services,
        metrics=services.metrics,
        clock=services.clock,
        forward=NodeConfigCheck(services, services.forwarder.forward).forward,
        on_bug=on_bug,
        access=services.access.check,
        throttle=throttle,
        audit=services.audit,
        tracer=build_tracer(services),
    )
