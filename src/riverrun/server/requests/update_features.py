"""UpdateFeatures: changes finalized feature levels; decided by ``cluster/features.py``."""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.features import update_features
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.update_features_request import UpdateFeaturesRequest
from riverrun.wire.messages.update_features_response import UpdateFeaturesResponse


def handle(
    services: NodeServices, context: RequestContext, request: UpdateFeaturesRequest
) -> Awaitable[UpdateFeaturesResponse]:
    return services.controller.submit(
        lambda image: update_features(services.configs, image, request)
    )
