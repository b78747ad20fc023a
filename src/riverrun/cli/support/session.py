"""Runs a command against a cluster, and says in words what went wrong and what helps.

All errors of the network and of the cluster become a sentence and an exit code here, once. A
command gets a pool, returns values, and prints them after the connection is closed.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from riverrun.cli.records.descriptors import OutputFailed
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
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.aio import run_together
from riverrun.records.batch import CorruptBatch
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

Result = TypeVar("Result")
Address = tuple[str, int]

CLIENT_ID = "riverrun-cli"
LOOKS_MAX = 3
LOOK_EVERY_SECONDS = 0.15
"""A node may hear a moment later than others that a topic was made."""

REMEDIES = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a name has up to 249 letters, digits, '.', '_' and '-'",
    ErrorCode.TOPIC_ALREADY_EXISTS: "look at it with `riverrun topics describe`, change it with "
    "`riverrun topics alter`",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; `riverrun groups describe` names them",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members; stop them first, `riverrun groups "
    "describe` names them",
    ErrorCode.MESSAGE_TOO_LARGE: "let the topic take more with `riverrun topics alter TOPIC "
    "--config max.message.bytes=BYTES`",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members use another assignor (we know range and "
    "roundrobin), or it is no group of consumers; choose another group",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas asks for; "
    "`riverrun topics describe` shows them",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are not that many nodes",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "this is a port for controllers; clients have another one, "
    "with `riverrun up` the one before",
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk of the node is full or broken; its log says more",
}
"""What helps, where the error alone does not say it."""

_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


class NotFound(Exception):
    """Something that a person named is not there; the text says what helps."""


async def ask_each(
    pool: ConnectionPool, messages: Mapping[int, Any], key: ApiKey, *, limit_s: float | None = None
) -> tuple[dict[int, Any], list[int]]:
    """The answers of nodes by their ids, all asked at once, and those that cannot be reached: a
    cluster goes on to list a node for a while when it has died, and what the others know is worth
    showing."""
    answers: dict[int, Any] = {}
    silent: list[int] = []

    async def ask(node: int) -> None:
        try:
            async with asyncio.timeout(limit_s):
                answers[node] = await pool.request_node(node, key, messages[node])
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
    """The result of a command that talks to a cluster, or the end of the program in words."""
    addresses_of(bootstrap)

    async def connected() -> Result:
        async with open_pool(bootstrap, retry) as pool:
            await pool.any_connection()  # at once and once: nobody wants to wait for a wrong port
            return await command(pool)

    try:
        return asyncio.run(connected())
    except ClusterUnreachable as error:
        fail(
            f"cannot reach a cluster: {error}\n"
            "  Start one with `riverrun up`, or say where it is with --bootstrap HOST:PORT "
            f"or {BOOTSTRAP_VARIABLE}.",
            UNREACHABLE,
        )
    except NotFound as error:
        fail(str(error), NOT_FOUND)
    except OutputFailed as error:
        fail(str(error), FAILED)
    except UnsupportedApi as error:
        fail(
            f"the cluster cannot do this: {error}\n"
            "  A node serves nothing while it waits for its first cluster: its log says for whom. "
            "A port for controllers serves no clients; with `riverrun up` theirs is the one before",
            FAILED,
        )
    except CorruptBatch as error:
        fail(f"the cluster sent records that are damaged: {error}", FAILED)
    except KafkaError as error:
        fail(in_words(error), NOT_FOUND if error.code in _NOT_FOUND else FAILED)
    except UnicodeError as error:
        fail(f"--bootstrap {bootstrap}: {error}", USAGE)
    except OSError as error:
        fail(
            f"the connection failed: {error.strerror or error}\n"
            "  `riverrun cluster status` shows which nodes are up.",
            UNREACHABLE,
        )


def open_pool(bootstrap: str, retry: RetryPolicy | None = None) -> ConnectionPool:
    return ConnectionPool(addresses_of(bootstrap), client_id=CLIENT_ID, retry=retry)


def addresses_of(bootstrap: str) -> list[Address]:
    try:
        return parse_bootstrap(bootstrap)
    except ValueError as error:
        fail(f"--bootstrap: {error}", USAGE)


def in_words(error: KafkaError) -> str:
    """What the cluster said, its name for it, and what helps."""
    name = error.code.name
    text = error.message or name
    if name not in text:
        text = f"{text} ({name})"
    remedy = REMEDIES.get(error.code)
    return f"{text}\n  Remedy: {remedy}." if remedy else text


def check(code: ErrorCode, message: str | None, about: str) -> None:
    """Raise what an answer says about something."""
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"{about}: {message or code.name}")


async def find_topic(
    pool: ConnectionPool, name: str, *, may_be_created: bool = True
) -> MetadataResponseTopic:
    """A topic's metadata; ``NotFound`` names one that is spelt alike, and says how to make it."""
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
        f"  {remedy}`riverrun topics list` shows all."
    )


def alike(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""
