"""Runs a command against a cluster, and explains errors with a remedy.

All network and cluster errors become a message and an exit code here. A command gets a pool,
returns values, and prints them after the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from riverrun.admin.requests import NotFound, in_words
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
from riverrun.records.batch import CorruptBatch
from riverrun.registry.errors import RegistryUnavailable

Result = TypeVar("Result")
Address = tuple[str, int]

CLIENT_ID = "riverrun-cli"

_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


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
