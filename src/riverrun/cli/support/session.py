"""Runs a command against a cluster, and explains errors with a remedy.

All network and cluster errors become a message and an exit code here. A command gets a pool,
returns values, and prints them after the connection is closed.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from riverrun.cli.records.descriptors import OutputFailed
from riverrun.cli.support.client_config import COMMAND_CONFIG_FLAG, login_of, security_of
from riverrun.cli.support.options import (
    BOOTSTRAP_VARIABLE,
    FAILED,
    NOT_FOUND,
    UNREACHABLE,
    USAGE,
    fail,
)
from riverrun.client.connection import UnsupportedApi
from riverrun.client.pool import ClusterUnreachable, ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.client.security import AuthenticationFailed
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.aio import run_together
from riverrun.records.batch import CorruptBatch
from riverrun.registry.errors import RegistryUnavailable
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

Result = TypeVar("Result")
Address = tuple[str, int]

CLIENT_ID = "riverrun-cli"
LOOKS_MAX = 3
LOOK_EVERY_SECONDS = 0.15
"""A node may learn of a new topic slightly later than others."""

REMEDIES = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a name has up to 249 letters, digits, '.', '_' and '-'",
    ErrorCode.TOPIC_ALREADY_EXISTS: "see `riverrun topics describe`, change it with `riverrun "
    "topics alter`",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; `riverrun groups describe` names them",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members; stop them first, `riverrun groups "
    "describe` names them",
    ErrorCode.MESSAGE_TOO_LARGE: "let the topic take more with `riverrun topics alter TOPIC "
    "--config max.message.bytes=BYTES`",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members use another assignor (range and "
    "roundrobin are supported), or it is not a consumer group; choose another group",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas requires; "
    "`riverrun topics describe` shows them",
    ErrorCode.INVALID_REPLICATION_FACTOR: "choose at most as many replicas as there are brokers "
    "(`riverrun cluster status` lists them; cordoned ones do not count), or start more nodes",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that read the topic; `riverrun groups "
    "describe` names them",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "this is a controller port; with `riverrun up` the "
    "client port is the one before",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "correct --pattern; 'billing-.*' is an example",
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk of the node is full or failing; see its log",
    **dict.fromkeys(
        (
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        "your user lacks a right; an administrator finds the reason with `riverrun acls check`, "
        "and gives rights with `riverrun acls add`",
    ),
}
"""Remedies for errors that do not name one."""

_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


class NotFound(Exception):
    """A named object does not exist; the text gives the remedy."""


async def ask_each(
    pool: ConnectionPool,
    messages: Mapping[int, Any],
    key: ApiKey,
    *,
    version: int | None = None,
    limit_s: float | None = None,
) -> tuple[dict[int, Any], list[int]]:
    """Responses by node id, requested in parallel, and the nodes that cannot be reached. A dead
    node is listed for a while, and the responses of the others are worth showing. ``version``: of
    an API that nodes do not advertise."""
    answers: dict[int, Any] = {}
    silent: list[int] = []

    async def ask(node: int) -> None:
        try:
            async with asyncio.timeout(limit_s):
                answers[node] = await pool.request_node(node, key, messages[node], version=version)
        except OSError:
            silent.append(node)

    await run_together(ask(node) for node in sorted(messages))
    return {node: answers[node] for node in sorted(answers)}, sorted(silent)


def run(
    bootstrap: str,
    command: Callable[[ConnectionPool], Awaitable[Result]],
    *,
    retry: RetryPolicy | None = None,
) -> Result:
    """The result of a command that talks to a cluster; exits with a message on errors."""
    addresses_of(bootstrap)

    async def connected() -> Result:
        async with open_pool(bootstrap, retry) as pool:
            await pool.any_connection()  # one attempt: a wrong port should fail at once
            return await command(pool)

    try:
        return asyncio.run(connected())
    except AuthenticationFailed as error:
        fail(
            f"the login failed: {error}\n"
            f"  {COMMAND_CONFIG_FLAG} FILE names the user, the password and the trusted authority, "
            "as Kafka's clients do.",
            FAILED,
        )
    except ClusterUnreachable as error:
        fail(_unreachable(bootstrap, error), UNREACHABLE)
    except NotFound as error:
        fail(str(error), NOT_FOUND)
    except OutputFailed as error:
        fail(str(error), FAILED)
    except UnsupportedApi as error:
        fail(
            f"the cluster cannot do this: {error}\n"
            "  A node that has not joined a cluster serves no requests; its log names the missing "
            "seeds. The controller port does not serve clients; with `riverrun up` the client port "
            "is one lower.",
            FAILED,
        )
    except CorruptBatch as error:
        fail(f"the cluster sent corrupt records: {error}", FAILED)
    except KafkaError as error:
        fail(in_words(error), NOT_FOUND if error.code in _NOT_FOUND else FAILED)
    except UnicodeError as error:
        fail(f"{_named(bootstrap)} {bootstrap}: {error}", USAGE)
    except RegistryUnavailable as error:
        fail(str(error), UNREACHABLE)
    except OSError as error:
        fail(
            f"the connection failed: {error.strerror or error}\n"
            "  `riverrun cluster status` shows which nodes are up."
            f"{_secure_hint(bootstrap, [error])}",
            UNREACHABLE,
        )


def _unreachable(bootstrap: str, error: ClusterUnreachable) -> str:
    hint = _secure_hint(bootstrap, error.failures)
    if (context := getattr(bootstrap, "context", None)) is not None:
        return (
            f"cannot reach the cluster of context {context}: {error}\n"
            "  Choose another with --context NAME or --bootstrap HOST:PORT; `riverrun context "
            "list` lists the contexts."
            f"{hint}"
        )
    return (
        f"cannot reach a cluster: {error}\n"
        "  Start one with `riverrun up`, or name it with --bootstrap HOST:PORT "
        f"or {BOOTSTRAP_VARIABLE}.{hint}"
    )


def _secure_hint(bootstrap: str, failures: Iterable[OSError]) -> str:
    """A listener with TLS or SASL closes the connection of a client that uses neither."""
    protocol = login_of(bootstrap).get("security.protocol", "PLAINTEXT")
    if protocol == "SASL_SSL" or not any(
        isinstance(failure, ConnectionResetError) for failure in failures
    ):
        return ""
    return (
        f"\n  A secure cluster closes connections that it does not expect, such as {protocol}: "
        f"{COMMAND_CONFIG_FLAG} FILE names the protocol and the login; `riverrun up --secure` "
        "writes the file as client.properties."
    )


def open_pool(bootstrap: str, retry: RetryPolicy | None = None) -> ConnectionPool:
    return ConnectionPool(
        addresses_of(bootstrap),
        client_id=CLIENT_ID,
        retry=retry,
        security=security_of(bootstrap),
    )


def addresses_of(bootstrap: str) -> list[Address]:
    try:
        return parse_bootstrap(bootstrap)
    except ValueError as error:
        fail(f"{_named(bootstrap)}: {error}", USAGE)


def _named(bootstrap: str) -> str:
    """The source of the address, for errors."""
    context = getattr(bootstrap, "context", None)
    return "--bootstrap" if context is None else f"context {context}"


def in_words(error: KafkaError) -> str:
    """The cluster's message, the error name, and the remedy."""
    name = error.code.name
    text = error.message or name
    if name not in text:
        text = f"{text} ({name})"
    remedy = REMEDIES.get(error.code)
    return f"{text}\n  Remedy: {remedy}." if remedy else text


def check(code: ErrorCode, message: str | None, about: str) -> None:
    """Raise the error of a response."""
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"{about}: {message or code.name}")


async def find_topic(
    pool: ConnectionPool, name: str, *, may_be_created: bool = True
) -> MetadataResponseTopic:
    """A topic's metadata; ``NotFound`` suggests a similar name or how to create it."""
    for _ in range(LOOKS_MAX):
        topic = (await pool.metadata([name])).topics[0]
        if topic.error_code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(topic.error_code, None, f"topic {name}")
            return topic
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    known = (await pool.metadata(None)).topics
    remedy = f"Create it with `riverrun topics create {name}`; " if may_be_created else ""
    raise NotFound(
        f"there is no topic {name}{alike(name, [row.name or '' for row in known])}\n"
        f"  {remedy}`riverrun topics list` lists all."
    )


def alike(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""
