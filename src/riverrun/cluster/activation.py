"""What a controller writes before anything else, whoever was controller before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.cluster.configs.sources import Configs, is_elr_enabled
from riverrun.cluster.features import elr_records
from riverrun.cluster.outcome import Outcome
from riverrun.cluster.partitions.leadership import elect_leaderless
from riverrun.metadata.bootstrap import first_records
from riverrun.metadata.image import Image
from riverrun.metadata.records import METADATA_VERSION_FEATURE

if TYPE_CHECKING:
    from riverrun.metadata.records import Record


def activate(configs: Configs, image: Image) -> Outcome[None]:
    """The features of a new cluster, what they ask for, and leaders for what has none: the
    controller before may have ended between unfencing a broker and electing it."""
    records: list[Record] = []
    is_new = METADATA_VERSION_FEATURE not in image.features
    if is_new:
        records += first_records({})
    if is_new or is_elr_enabled(image):
        records += elr_records(configs, image)
    records += elect_leaderless(configs, image)
    return Outcome(records=tuple(records), response=None)
