"""UpdateFeatures: all or nothing, and only levels that all nodes support."""

from __future__ import annotations

import pytest

from riverrun.cluster.active_controller import activate
from riverrun.cluster.features import update_features
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.update_features_request import FeatureUpdateKey, UpdateFeaturesRequest
from riverrun.wire.messages.update_features_response import UpdateFeaturesResponse
from tests.cluster.fakes import cluster_of, make_configs, replayed
from tests.cluster.states import NONE, P, cluster, state, topic

CONFIGS = make_configs({"min.insync.replicas": "2"})
ELR = "eligible.leader.replicas.version"
TRANSACTIONS = "transaction.version"
GROUPS = "group.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3


def update(
    image: Image, *wanted: tuple[str, int, int], validate_only: bool = False
) -> tuple[Image, UpdateFeaturesResponse]:
    request = UpdateFeaturesRequest(
        feature_updates=tuple(
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in wanted
        ),
        validate_only=validate_only,
    )
    decision = update_features(CONFIGS, image, request)
    after = replayed(image, decision.records) if decision.records else image
    return after, decision.response


@pytest.mark.parametrize(
    ("name", "level", "kind", "reason"),
    [
        ("no.such", 1, UPGRADE, "The local controller does not support this feature."),
        (ELR, 2, UPGRADE, "The local controller only supports versions 0-1"),
        (ELR, -1, UPGRADE, "A feature version cannot be less than 0."),
        (ELR, 0, 0, "The controller does not support the given upgrade type."),
        (
            ELR,
            0,
            UPGRADE,
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade.",
        ),
        ("metadata.version", 0, UNSAFE, "It cannot be removed."),
        ("kraft.version", 0, SAFE, "It cannot be changed."),
    ],
)
def test_invalid_update_is_refused_as_a_whole(
    name: str, level: int, kind: int, reason: str
) -> None:
    image = cluster_of(1)
    after, response = update(image, ("metadata.version", 30, UPGRADE), (name, level, kind))
    assert after is image
    assert response.error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert response.error_message == (
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {level} for feature {name}. {reason}"
    )


def test_elr_feature_clears_elr_when_disabled_and_stores_the_minimum_when_enabled() -> None:
    image = cluster(P(NONE, (), elr=(1,), last=(2,)), fenced=(1, 2))
    image, response = update(image, (ELR, 0, SAFE))
    assert (response.error_code, [one.feature for one in response.results]) == (
        ErrorCode.NONE,
        [ELR],
    )
    assert ELR not in image.features
    assert state(topic(image).partitions[0]) == P(NONE, ())
    image, response = update(cluster_of(1), (ELR, 0, SAFE))
    image, response = update(image, (ELR, 1, UPGRADE))
    assert image.config(ConfigType.BROKER, "") == {"min.insync.replicas": "2"}
    _, response = update(image, (ELR, 1, SAFE))
    assert response.error_code is ErrorCode.NONE


def test_validate_only_changes_nothing() -> None:
    image = cluster_of(1)
    after, response = update(image, (ELR, 0, SAFE), validate_only=True)
    assert (after, response.error_code) == (image, ErrorCode.NONE)


def test_first_controller_finalises_the_features_of_a_new_cluster() -> None:
    image = replayed(Image(), activate(CONFIGS, Image()).records)
    assert image.features == {"metadata.version": 30, ELR: 1, TRANSACTIONS: 2, GROUPS: 1}
    assert image.config(ConfigType.BROKER, "") == {"min.insync.replicas": "2"}
    assert activate(CONFIGS, image).records == ()


def test_new_controller_elects_leaders_that_the_previous_one_did_not() -> None:
    image = cluster(P(NONE, (), elr=(2,), last=(1,)), fenced=(1,))
    image = replayed(image, activate(CONFIGS, image).records)
    assert state(topic(image).partitions[0]) == P(2, (2,))


def test_transaction_version_is_raised_and_lowered() -> None:
    image = cluster_of(1)
    assert TRANSACTIONS not in image.features
    for level, kind in ((1, UPGRADE), (2, UPGRADE), (1, SAFE), (2, UPGRADE), (0, SAFE)):
        image, response = update(image, (TRANSACTIONS, level, kind))
        assert response.error_code is ErrorCode.NONE
        assert image.features.get(TRANSACTIONS, 0) == level
    image, response = update(image, (TRANSACTIONS, 3, UPGRADE))
    assert response.error_code is ErrorCode.INVALID_UPDATE_VERSION
