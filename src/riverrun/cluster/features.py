"""UpdateFeatures: the finalised feature levels of the cluster (KIP-584, KIP-1022).

A level is finalised only if all registered brokers and controllers support it. metadata.version
decides how records are written. We write one version, so it cannot be changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions.election_rules import ELR_FEATURE, is_elr_enabled
from riverrun.cluster.partitions.elr import records_to_enable
from riverrun.metadata.image import Image
from riverrun.metadata.records import ClearElrRecord, FeatureLevelRecord
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
    """Update all features, or none if one of them is refused."""
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
    for node, supported in _supported_by_nodes(image):
        if name not in supported:
            return f"{node} does not support this feature."
        low, high = supported[name]
        if level and not low <= level <= high:
            return f"{node} only supports versions {low}-{high}"
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


def _supported_by_nodes(image: Image) -> Iterator[tuple[str, Mapping[str, tuple[int, int]]]]:
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
        yield from records_to_enable(configs, image)
