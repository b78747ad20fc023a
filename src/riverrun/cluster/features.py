"""UpdateFeatures: levels that the cluster agrees on (KIP-584, KIP-1022).

A level is finalised only when every broker and controller that is registered supports it. Ours are
fixed points of the design: metadata.version decides how records are written, and we write one form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.cluster.configs.node_configs import (
    CLUSTER,
    ELR_FEATURE,
    MIN_INSYNC_REPLICAS,
    Configs,
    is_elr_enabled,
)
from riverrun.cluster.decision import Decision
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ClearElrRecord, ConfigRecord, FeatureLevelRecord
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.update_features_response import (
    UpdatableFeatureResult,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record
    from riverrun.wire.messages.update_features_request import (
        FeatureUpdateKey,
        UpdateFeaturesRequest,
    )

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
KRAFT_VERSION_FEATURE: Final = "kraft.version"
FINALISED_KRAFT_VERSION: Final = 1


def update_features(
    configs: Configs, image: Image, request: UpdateFeaturesRequest
) -> Decision[UpdateFeaturesResponse]:
    """All of them, or none with the reason of the first that cannot be."""
    wanted = {one.feature: one for one in request.feature_updates}
    for update in wanted.values():
        reason = _refusal(image, update)
        if reason is not None:
            level, name = update.max_version_level, update.feature
            return Decision(
                response=UpdateFeaturesResponse(
                    throttle_time_ms=0,
                    error_code=ErrorCode.INVALID_UPDATE_VERSION,
                    error_message="The update failed for all features since the following feature "
                    f"had an error: Invalid update version {level} for feature {name}. {reason}",
                )
            )
    records = [record for one in wanted.values() for record in _records(configs, image, one)]
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=UpdateFeaturesResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            error_message=None,
            results=tuple(
                UpdatableFeatureResult(feature=name, error_code=ErrorCode.NONE, error_message=None)
                for name in wanted
            ),
        ),
    )


def _level(image: Image, name: str) -> int:
    if name == KRAFT_VERSION_FEATURE:
        return FINALISED_KRAFT_VERSION
    return image.features.get(name, 0)


def _refusal(image: Image, update: FeatureUpdateKey) -> str | None:
    name, level = update.feature, update.max_version_level
    kind = SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    for who, supported in _everybody(image):
        if name not in supported:
            return f"{who} does not support this feature."
        low, high = supported[name]
        if level and not low <= level <= high:
            return f"{who} only supports versions {low}-{high}"
    now = _level(image, name)
    if level < now and kind == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if level > now and kind != UPGRADE:
        return "Can't downgrade to a newer version."
    if level < now and level < SUPPORTED_FEATURES[name][0]:
        return "It cannot be removed."
    if level != now and name == KRAFT_VERSION_FEATURE:
        return "It cannot be changed."
    return None


def _everybody(image: Image) -> Iterator[tuple[str, Mapping[str, tuple[int, int]]]]:
    yield "The local controller", SUPPORTED_FEATURES
    for broker in image.brokers.values():
        yield f"Broker {broker.id}", broker.features
    for controller in image.controllers.values():
        yield f"Controller {controller.id}", controller.features


def _records(configs: Configs, image: Image, update: FeatureUpdateKey) -> Iterator[Record]:
    name, level = update.feature, update.max_version_level
    if level == _level(image, name):
        return
    yield FeatureLevelRecord(name=name, feature_level=level)
    if name != ELR_FEATURE:
        return
    if level == 0:
        yield ClearElrRecord(topic_name="")
    elif not is_elr_enabled(image):
        yield from elr_records(configs, image)


def elr_records(configs: Configs, image: Image) -> Iterator[Record]:
    """With ELR everybody must judge by the same min.insync.replicas, so the cluster's default is a
    record and not a line in each broker's file (KIP-966)."""
    for kind, name in image.configs:
        is_broker = kind is ConfigType.BROKER and name != CLUSTER
        if is_broker and MIN_INSYNC_REPLICAS in image.configs[kind, name]:
            yield ConfigRecord(
                resource_type=kind, resource_name=name, name=MIN_INSYNC_REPLICAS, value=None
            )
    if MIN_INSYNC_REPLICAS not in image.config(ConfigType.BROKER, CLUSTER):
        yield ConfigRecord(
            resource_type=ConfigType.BROKER,
            resource_name=CLUSTER,
            name=MIN_INSYNC_REPLICAS,
            value=configs.static_text(MIN_INSYNC_REPLICAS) or "1",
        )
