"""What moves have left behind: reassignments, plans, throttles and files of replicas.

Each function returns what is left as text. Moves end some time after the last fault, and files of
moved replicas are kept for a grace time, so the caller asks until nothing is left.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from riverrun.chaos.cluster import ChaosCluster, ClusterFailed
from riverrun.chaos.probe import NO_RESPONSE, Probe
from riverrun.cluster.balancing.throttling import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
)
from riverrun.model.names import METADATA_TOPIC
from riverrun.placement.planner.stored_plan import ALL_PLANS, HEADER, PROGRESS, RESULT
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from riverrun.wire.messages.metadata_request import MetadataRequest

PLAN, TOPIC, BROKER = 0, 2, 4
END_SECONDS_MAX = 30.0
PAUSE_SECONDS = 0.2
DEFAULT_SOURCE = 5
REPLICA_FOLDER = re.compile(r".+-\d+(\.[0-9a-f]{32}-delete)?")
NO_ANSWER = "a node does not respond"


class ListedMove(NamedTuple):
    topic: str
    partition: int
    adding: tuple[int, ...]


def ongoing_moves(probe: Probe, number: int) -> list[ListedMove]:
    """The reassignments that run. Raises an error of NO_RESPONSE."""
    response = probe.request(
        number,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None),
    )
    return [
        ListedMove(topic.name, row.partition_index, tuple(row.adding_replicas))
        for topic in response.topics
        for row in topic.partitions
    ]


def expect_nothing_left(cluster: ChaosCluster, probe: Probe) -> None:
    """Wait until moves have ended and have left nothing behind."""
    end = time.monotonic() + END_SECONDS_MAX
    while (left := leftover(cluster, probe)) is not None:
        if time.monotonic() > end:
            raise ClusterFailed(f"{END_SECONDS_MAX:g} s after the last move, {left}")
        time.sleep(PAUSE_SECONDS)


def leftover(cluster: ChaosCluster, probe: Probe) -> str | None:
    """What is left of all moves; None if nothing is. All nodes must be up."""
    try:
        node = cluster.running[0]
        moves = ongoing_moves(probe, node)
        if moves:
            return f"reassignments run: {moves}"
        return (
            _running_plan(probe, node) or _throttle(cluster, probe, node) or _files(cluster, probe)
        )
    except NO_RESPONSE:
        return NO_ANSWER


def _running_plan(probe: Probe, node: int) -> str | None:
    (plans,) = _settings(probe, node, [(PLAN, ALL_PLANS, None)])
    for plan in plans:
        (texts,) = _settings(probe, node, [(PLAN, plan, (HEADER, PROGRESS, RESULT))])
        if HEADER in texts and RESULT not in texts:
            return f"plan {plan} runs: {texts.get(PROGRESS)}"
    return None


def _throttle(cluster: ChaosCluster, probe: Probe, node: int) -> str | None:
    lists, rates = (LEADER_LIST, FOLLOWER_LIST), (LEADER_RATE, FOLLOWER_RATE)
    topics = [(TOPIC, topic, lists) for topic, _ in _assigned(probe, node)]
    for (_, name, _), texts in zip(topics, _settings(probe, node, topics), strict=True):
        if any(texts.values()):
            return f"topic {name} is throttled: {texts}"
    for number in cluster.nodes:
        (texts,) = _settings(probe, number, [(BROKER, str(number), rates)])
        if texts:
            return f"broker {number} has throttled rates: {texts}"
    return None


def _files(cluster: ChaosCluster, probe: Probe) -> str | None:
    for number, node in cluster.nodes.items():
        expected = {
            f"{topic}-{index}": None
            for topic, rows in _assigned(probe, number)
            for index, replicas in rows
            if number in replicas
        }
        expected[f"{METADATA_TOPIC}-0"] = None
        for path in sorted(node.place.data.iterdir()):
            if REPLICA_FOLDER.fullmatch(path.name) and path.name not in expected:
                return f"node {number} still has {path.name}"
    return None


def _assigned(probe: Probe, number: int) -> list[tuple[str, list[tuple[int, tuple[int, ...]]]]]:
    response = probe.request(
        number, ApiKey.METADATA, MetadataRequest(topics=None, allow_auto_topic_creation=False)
    )
    return [
        (topic.name, [(row.partition_index, tuple(row.replica_nodes)) for row in topic.partitions])
        for topic in response.topics
    ]


def _settings(
    probe: Probe, number: int, wanted: Sequence[tuple[int, str, tuple[str, ...] | None]]
) -> list[dict[str, str]]:
    """The settings of resources that are not defaults."""
    message = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in wanted
        )
    )
    response = probe.request(number, ApiKey.DESCRIBE_CONFIGS, message)
    return [
        {
            row.name: row.value
            for row in result.configs
            if row.value is not None and row.config_source != DEFAULT_SOURCE
        }
        for result in response.results
    ]
