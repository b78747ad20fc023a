"""The matrix of access rights: every API with its rights missing, denied and given."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.differential.script import Script
from tests.differential.scripts.matrix import (
    administration,
    cluster,
    groups,
    nodes,
    patterns,
    tokens,
    topics,
    transactions,
)
from tests.differential.scripts.matrix.rights import NO_RIGHT

__all__ = (
    "NEEDS_NO_RIGHT",
    "NO_RIGHT",
    "SAME_FOR_ALL",
    "SCRIPTS",
    "TABLES",
    "apis_in_matrix",
    "apis_of_controllers",
)

SCRIPTS: Mapping[str, Callable[[Script], None]] = MappingProxyType(
    {
        "matrix-topics": topics.topics,
        "matrix-groups": groups.groups,
        "matrix-transactions": transactions.transactions,
        "matrix-cluster": cluster.cluster,
        "matrix-tokens": tokens.tokens,
        "matrix-nodes": nodes.nodes,
        "matrix-controllers": nodes.controllers,
        "matrix-administration": administration.administration,
        "matrix-operations": patterns.operations,
        "matrix-patterns": patterns.patterns,
    }
)

NEEDS_NO_RIGHT: Mapping[str, str] = MappingProxyType(
    {
        "api_versions": "Clients send it before they log in.",
        "sasl_handshake": "It is the login, before which there is no user.",
        "sasl_authenticate": "It is the login, before which there is no user.",
    }
)
"""APIs without a row in the matrix, and why."""

SAME_FOR_ALL: Mapping[str, str] = MappingProxyType(
    {
        "renew_delegation_token": "Only owners and renewers may, whatever their rights.",
        "expire_delegation_token": "Only owners and renewers may, whatever their rights.",
    }
)
"""APIs for which rights make no difference, and why."""

TABLES = tuple(
    f"secured-matrix-{name}"
    for name in (
        *("topics", "groups", "transactions", "cluster", "tokens"),
        *("controllers", "administration"),
    )
)
"""The recordings of calls with their rights missing, denied and given. The listener of clients does
not serve requests of nodes, whatever their rights."""


def apis_in_matrix() -> set[str]:
    """The APIs of the listener of clients with at least one row."""
    script = Script(("", 0), "names", "newest")
    tables = (
        topics.calls(script),
        groups.calls(script),
        transactions.calls(script),
        cluster.CALLS,
        tokens.CALLS,
    )
    return {call.api for table in tables for call in table}


def apis_of_controllers() -> set[str]:
    """The APIs of the listener of controllers with at least one row."""
    script = Script(("", 0), "names", "newest")
    sent = (*nodes.CALLS_TO_CONTROLLERS, *administration.calls(script))
    return {call.api for call in sent}
