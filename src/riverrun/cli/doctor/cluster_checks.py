"""Checks of a running cluster: health, versions, clocks, settings, racks and topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from riverrun.admin.tables import counted
from riverrun.cli.doctor.certificates import expiry_finding
from riverrun.cli.doctor.cluster_facts import CheckedNode, ClusterFacts
from riverrun.cli.doctor.findings import Finding, bad, care, good, note, or_good
from riverrun.cli.doctor.settings_check import (
    NAMES,
    REPLICATED_FROM,
    SETTINGS,
    setting_findings,
)

CLUSTER: Final = "cluster"
VERSIONS: Final = "versions"
CLOCKS: Final = "clocks"
SKEW_SECONDS_MAX: Final = 0.5
SHOWN_MAX: Final = 5
"""Names of topics in one finding."""


def cluster_findings(facts: ClusterFacts) -> Iterator[Finding]:
    healthy = f"{counted(len(facts.nodes), 'node')}, healthy"
    remedy = "`riverrun cluster describe` names the partitions and nodes"
    yield from or_good((bad(CLUSTER, text, remedy) for text in facts.problems), CLUSTER, healthy)
    yield from _voters(facts)
    yield from _racks(facts.nodes)
    yield from _versions(facts.nodes)
    yield from _clocks(facts.nodes)
    yield from or_good(_settings(facts), SETTINGS, "no risky settings in the cluster")
    for node in facts.nodes:
        if node.metrics is not None:
            for of, seconds in node.metrics.certificates.items():
                yield expiry_finding(f"the certificate of {of} on node {node.node}", seconds)


def _voters(facts: ClusterFacts) -> Iterator[Finding]:
    voters = facts.voters
    if voters == 1 and len(facts.nodes) >= REPLICATED_FROM:
        text = f"one voter for {len(facts.nodes)} nodes: without it, no leader can be elected"
        yield care(CLUSTER, text, "riverrun quorum add NODE, until there are three voters")
    elif voters and voters % 2 == 0:
        text = f"{voters} voters survive no more failures than {voters - 1}"
        yield note(CLUSTER, text, "use an odd number: riverrun quorum add or remove")


def _racks(nodes: Sequence[CheckedNode]) -> Iterator[Finding]:
    without = [str(node.node) for node in nodes if not node.rack]
    if without and len(without) < len(nodes):
        text = f"nodes {', '.join(without)} have no rack, and the others do"
        yield care(CLUSTER, text, "set broker.rack on all nodes, or on none")


def _versions(nodes: Sequence[CheckedNode]) -> Iterator[Finding]:
    known: dict[str, list[str]] = {}
    for node in nodes:
        if node.metrics is not None and node.metrics.version is not None:
            known.setdefault(node.metrics.version, []).append(str(node.node))
    unknown = [
        str(node.node) for node in nodes if node.metrics is None or node.metrics.version is None
    ]
    if len(known) > 1:
        text = "; ".join(f"{version} on {', '.join(where)}" for version, where in known.items())
        yield care(VERSIONS, f"the nodes have different versions: {text}", "complete the upgrade")
    elif known:
        [(version, where)] = known.items()
        yield good(VERSIONS, f"riverrun {version} on {counted(len(where), 'node')}")
    if unknown:
        nodes_named = f"node{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
        text = f"the metrics of {nodes_named} cannot be read from here"
        yield note(VERSIONS, text, "versions, clocks and certificates there were not checked")


def _clocks(nodes: Sequence[CheckedNode]) -> Iterator[Finding]:
    """Only a difference that the duration of the requests does not explain is a finding."""
    ahead = {
        node.node: (node.metrics.clock_ahead_seconds, node.metrics.clock_error_seconds)
        for node in nodes
        if node.metrics is not None and node.metrics.clock_ahead_seconds is not None
    }
    if not ahead:
        return
    first, first_error = min(ahead.values(), key=lambda one: one[0] + one[1])
    last, last_error = max(ahead.values(), key=lambda one: one[0] - one[1])
    skew = max(0.0, (last - last_error) - (first + first_error))
    if skew > SKEW_SECONDS_MAX:
        order = sorted(ahead, key=lambda node: ahead[node][0])
        text = f"node {order[-1]} is at least {skew:.1f} s ahead of node {order[0]}"
        yield care(CLOCKS, text, "synchronize the clocks: chrony or systemd-timesyncd")
    elif len(ahead) > 1:
        text = f"the clocks of {len(ahead)} nodes agree within {SKEW_SECONDS_MAX:g} s"
        yield good(CLOCKS, text)
    own = min((abs(seconds) - error for seconds, error in ahead.values()), default=0.0)
    if own > SKEW_SECONDS_MAX:
        text = f"the clock of this machine differs from all nodes by at least {own:.1f} s"
        yield note(CLOCKS, text, "synchronize the clock of this machine")


def _settings(facts: ClusterFacts) -> Iterator[Finding]:
    known = [node for node in facts.nodes if node.settings]
    if known:
        yield from setting_findings(known[0].settings, len(facts.nodes))
    for name in NAMES:
        values: dict[str, list[str]] = {}
        for node in known:
            if name in node.settings:
                values.setdefault(node.settings[name], []).append(str(node.node))
        if len(values) > 1:
            text = "; ".join(f"{value} on {', '.join(where)}" for value, where in values.items())
            remedy = "write the same value into all files, or riverrun cluster config set"
            yield care(SETTINGS, f"{name} differs: {text}", remedy)
    if facts.single_replicas and len(facts.nodes) >= REPLICATED_FROM:
        count = counted(len(facts.single_replicas), "topic")
        names = ", ".join(facts.single_replicas[:SHOWN_MAX])
        more = ", ..." if len(facts.single_replicas) > SHOWN_MAX else ""
        yield care(
            SETTINGS,
            f"{count} with one replica: {names}{more}",
            "riverrun topics alter TOPIC --replicas 3",
        )
