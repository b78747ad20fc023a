"""Requests to a cluster: parallel ones, checked responses, topics by name, errors with a remedy."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.aio import run_together
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

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
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "give all nodes the same "
    "delegation.token.secret.key and restart them; see `riverrun docs security`",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in as a user, by a password or a "
    "certificate; clients without a login, and those that logged in with a token, cannot see and "
    "change tokens",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "log in as its owner or as one of its renewers; "
    "`riverrun tokens list` names them",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "owners and renewers are users, such as alice or User:alice",
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


REMEDY = "\n  Remedy: "


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


def in_words(error: KafkaError) -> str:
    """The cluster's message, the error name, and the remedy, unless the message has one."""
    name = error.code.name
    text = error.message or name
    if name not in text:
        text = f"{text} ({name})"
    remedy = REMEDIES.get(error.code)
    return f"{text}{REMEDY}{remedy}." if remedy and REMEDY not in text else text


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
        if topic.error_code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            text = f"your user lacks the right Describe on topic {name}"
            raise KafkaError(topic.error_code, text)
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


def alike(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""
