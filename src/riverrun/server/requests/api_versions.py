"""ApiVersions: the APIs that this node serves, and the features that the cluster has finalized.

Versions 0 to 4:

* v3: name and version of the client software (KIP-511). The router responds to unknown versions in
  the form of v0.
* APIs of a feature that is not finalised are left out.
* v4: features whose lowest level is 0 (KIP-1022). Older clients reject them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.metadata.image import Image
from riverrun.metadata.quorum import KRAFT_VERSION
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import CONTROLLER, RequestContext
from riverrun.server.services import BrokerServices, NodeServices
from riverrun.wire.apis import APIS, CONTROLLER_APIS, FEATURE_OF, Api, ApiKey
from riverrun.wire.codec import encode_response
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FIRST_WITH_SOFTWARE: Final = 3
FIRST_WITH_LEVEL_ZERO: Final = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


def handle(
    services: NodeServices, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse | bytes:
    version = context.api_version
    if version >= FIRST_WITH_SOFTWARE:
        name, release = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(release)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
        if isinstance(services, BrokerServices):
            services.facts.connections.note_software(context.connection_id, name, release)
    image = services.metadata.current
    apis = CONTROLLER_APIS if context.listener == CONTROLLER else APIS
    return services.response_cache.api_versions(
        version, context.listener, image, lambda: _encoded(version, image, apis)
    )


def _encoded(version: int, image: Image, apis: Mapping[int, Api]) -> bytes:
    response = ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=tuple(
            ApiVersion(
                api_key=api.key,
                min_version=api.advertised_min_version,
                max_version=api.max_version,
            )
            for api in apis.values()
            if api.key not in FEATURE_OF or image.features.get(FEATURE_OF[api.key], 0) > 0
        ),
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
            if low > 0 or version >= FIRST_WITH_LEVEL_ZERO
        ),
        finalized_features_epoch=image.offset,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in {**image.features, "kraft.version": KRAFT_VERSION}.items()
        ),
    )
    return encode_response(ApiKey.API_VERSIONS, version, response)
