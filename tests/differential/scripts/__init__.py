"""All scripts of the differential tests by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.differential.script import Script
from tests.differential.scripts import (
    commits,
    configs,
    fetching,
    groups,
    moving,
    offsets,
    producing,
    quotas,
    security,
    topics,
    transaction_versions,
    transactional_data,
    transactions,
    wire,
)

SECURED: Mapping[str, Callable[[Script], None]] = MappingProxyType(
    {f"secured-{name}": script for name, script in security.SCRIPTS.items()}
)
"""Scripts for servers with logins and access control."""

SCRIPTS: Mapping[str, Callable[[Script], None]] = MappingProxyType(
    {
        "api-versions": wire.api_versions,
        "every-version": wire.every_version,
        "cluster": wire.cluster,
        "quorum": wire.quorum,
        "pipelined": wire.pipelined,
        "headers": wire.headers,
        "bad-frames": wire.bad_frames,
        "topics-create": topics.create,
        "topics-assign": topics.create_with_assignments,
        "topics-configs": topics.create_with_configs,
        "topics-look-up": topics.look_up,
        "topics-auto-create": topics.auto_create,
        "topics-delete": topics.delete,
        "topics-grow": topics.grow,
        "topics-describe": topics.describe_partitions,
        "reassign": moving.reassign,
        "configs-topic": configs.describe_topic,
        "configs-broker": configs.describe_broker,
        "configs-alter": configs.alter_topic,
        "configs-change": configs.change_topic,
        "configs-others": configs.change_others,
        "quotas-alter": quotas.alter,
        "quotas-refused": quotas.refused,
        "quotas-describe": quotas.describe,
        "produce-good": producing.good,
        "produce-unknown": producing.unknown,
        "produce-broken": producing.broken,
        "produce-broken-inside": producing.broken_inside,
        "produce-limits": producing.limits,
        "produce-compacted": producing.compacted,
        "produce-append-time": producing.append_time,
        "produce-recompressed": producing.recompressed,
        "produce-idempotent": producing.idempotent,
        "producer-ids": producing.producer_ids,
        **transactions.SCRIPTS,
        **transactional_data.SCRIPTS,
        **transaction_versions.SCRIPTS,
        "fetch-positions": fetching.positions,
        "fetch-sizes": fetching.sizes,
        "fetch-epochs": fetching.epochs,
        "fetch-waiting": fetching.waiting,
        "fetch-sessions": fetching.sessions,
        "fetch-deleted": fetching.deleted_topic,
        "offsets-by-time": offsets.by_time,
        "offsets-empty": offsets.of_an_empty_log,
        "offsets-by-epoch": offsets.by_epoch,
        "offsets-delete": offsets.delete_records,
        "groups-one": groups.one_member,
        "groups-refused": groups.joins_refused,
        "groups-two": groups.two_members,
        "groups-silent": groups.falls_silent,
        "groups-left-behind": groups.left_behind,
        "groups-static": groups.static_members,
        "groups-leave": groups.leaves,
        "groups-lists": groups.lists,
        "groups-offset-delete": groups.offset_deletion,
        "groups-coordinator": groups.coordinators,
        "commits-simple": commits.simple,
        "commits-members": commits.by_members,
        "commits-many": commits.many_groups,
        "commits-deleted": commits.of_deleted_topics,
    }
)
