"""Settings that lose data or stop writes when a node fails, in a file or in a running cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from riverrun.cli.doctor.findings import Finding, care, note

SETTINGS: Final = "settings"
REPLICATION_FACTOR: Final = "default.replication.factor"
MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
AUTO_CREATE: Final = "auto.create.topics.enable"
INTERNAL_FACTORS: Final = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)
NAMES: Final = (REPLICATION_FACTOR, MIN_ISR, UNCLEAN, AUTO_CREATE, *INTERNAL_FACTORS)
"""The settings that are looked at. They should be the same on all nodes."""
REPLICATED_FROM: Final = 3
"""Clusters of this many nodes survive the loss of one."""


def setting_findings(values: Mapping[str, str], nodes: int) -> Iterator[Finding]:
    """Of a cluster with this many nodes, all of which have these settings."""
    factor = int(values.get(REPLICATION_FACTOR, "1"))
    min_isr = int(values.get(MIN_ISR, "1"))
    is_replicated = nodes >= REPLICATED_FROM
    if is_replicated and factor == 1:
        yield care(
            SETTINGS,
            f"{REPLICATION_FACTOR} is 1 in a cluster of {nodes} nodes: new topics are lost with a"
            " node",
            f"set {REPLICATION_FACTOR}=3 on the controllers",
        )
    if is_replicated and factor >= REPLICATED_FROM and min_isr == 1:
        yield care(
            SETTINGS,
            f"{MIN_ISR} is 1: a record may be acknowledged that only one node has",
            f"riverrun cluster config set {MIN_ISR}=2",
        )
    if factor > 1 and min_isr >= factor:
        yield care(
            SETTINGS,
            f"{MIN_ISR} is {min_isr} with {factor} replicas: writes stop when one node is down",
            f"riverrun cluster config set {MIN_ISR}={factor - 1}",
        )
    for name in INTERNAL_FACTORS:
        if is_replicated and int(values.get(name, "1")) == 1:
            yield care(
                SETTINGS,
                f"{name} is 1: groups or transactions stop when one node is down",
                f"set {name}=3 on all nodes, and riverrun topics alter TOPIC --replicas 3 if the"
                " internal topic exists",
            )
    if values.get(UNCLEAN) == "true":
        yield care(
            SETTINGS,
            f"{UNCLEAN} is true: a replica that lacks records may lead, and they are lost",
            f"riverrun cluster config set {UNCLEAN}=false",
        )
    if is_replicated and values.get(AUTO_CREATE) == "true":
        yield note(
            SETTINGS,
            f"{AUTO_CREATE} is true: a misspelt name in a client creates a topic",
            f"set {AUTO_CREATE}=false on all nodes if topics are created on purpose only",
        )


def listener_findings(
    protocols: Mapping[str, tuple[str, str]], *, has_authorizer: bool, super_users: str
) -> Iterator[Finding]:
    """``protocols`` are those of the listeners for clients, with the host that each listens on."""
    for name, (host, protocol) in protocols.items():
        is_open = protocol in ("PLAINTEXT", "SSL") and not has_authorizer
        if is_open and not host.startswith("127.") and host not in ("localhost", "::1"):
            yield note(
                SETTINGS,
                f"the listener {name} on {host} has no logins: every client that reaches it may do"
                " everything",
                "`riverrun docs security` explains TLS, logins and rights",
            )
    if has_authorizer and not super_users.strip():
        yield care(
            SETTINGS,
            "access control is on without super.users: nobody may grant rights",
            "set super.users=User:admin on all nodes",
        )
