"""Requests about SCRAM users."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from riverrun.admin.requests import NotFound, check
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.scram import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramMechanism,
    salted_password,
)
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from riverrun.wire.messages.alter_user_scram_credentials_response import (
    AlterUserScramCredentialsResponse,
)
from riverrun.wire.messages.describe_user_scram_credentials_request import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from riverrun.wire.messages.describe_user_scram_credentials_response import (
    DescribeUserScramCredentialsResponse,
)

MECHANISMS: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUser:
    name: str
    mechanisms: dict[str, int]
    """Iterations by mechanism."""

    def described(self) -> dict[str, object]:
        rows = [{"name": name, "iterations": count} for name, count in self.mechanisms.items()]
        return {"user": self.name, "mechanisms": rows}


async def list_users(pool: ConnectionPool, name: str | None = None) -> list[ScramUser]:
    """All users, or the named one."""
    wanted = None if name is None else (UserName(name=name),)
    response: DescribeUserScramCredentialsResponse = await pool.request(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users=wanted)
    )
    check(response.error_code, response.error_message, "users")
    users = []
    for row in response.results:
        if row.error_code is ErrorCode.RESOURCE_NOT_FOUND:
            raise NotFound(f"there is no user {row.user}; `riverrun users list` lists all")
        check(row.error_code, row.error_message, f"user {row.user}")
        found = {MECHANISMS[i.mechanism].title: i.iterations for i in row.credential_infos}
        users.append(ScramUser(name=row.user, mechanisms=found))
    return sorted(users, key=lambda user: user.name)


async def is_missing(pool: ConnectionPool, user: str) -> bool:
    """Whether no user of this name, such as alice or User:alice, logs in by SCRAM. False if that is
    unknown, because the caller may not list users."""
    try:
        await list_users(pool, user.removeprefix("User:"))
    except NotFound:
        return True
    except KafkaError:
        pass
    return False


def parse_mechanisms(names: Sequence[str]) -> list[ScramMechanism]:
    """Mechanisms by name, in any case. Raises ValueError."""
    found = []
    for name in names:
        mechanism = ScramMechanism.named(name.upper())
        if mechanism is None:
            known = ", ".join(one.title for one in ScramMechanism)
            raise ValueError(f"{name}: choose one of {known}")
        found.append(mechanism)
    return list(dict.fromkeys(found))


async def add_user(
    pool: ConnectionPool,
    name: str,
    password: str,
    mechanisms: Sequence[ScramMechanism] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Add a user, by default with all mechanisms. Raises KafkaError if it exists."""
    try:
        await list_users(pool, name)
    except NotFound:
        if not validate_only:
            await set_password(pool, name, password, mechanisms or tuple(ScramMechanism))
        return
    raise KafkaError(
        ErrorCode.DUPLICATE_RESOURCE,
        f"user {name} exists; change its password with `riverrun users password {name}`",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordChange:
    """Mechanisms after a change of a password."""

    valid: list[ScramMechanism]
    """The user logs in with these, by the new password."""
    removed: list[ScramMechanism]
    """The user had these, with the old password."""


async def change_password(
    pool: ConnectionPool,
    name: str,
    password: str,
    mechanisms: Sequence[ScramMechanism] = (),
    *,
    validate_only: bool = False,
) -> PasswordChange:
    """Change the password of a user, by default for all mechanisms that it has. If some are given,
    the user keeps only these, because the old password would be valid for the others.

    A failure may leave the old password valid for some mechanisms. The same call again ends it.
    """
    (known,) = await list_users(pool, name)
    had = [one for one in ScramMechanism if one.title in known.mechanisms]
    kept = [one for one in ScramMechanism if one in (mechanisms or had)]
    change = PasswordChange(valid=kept, removed=[one for one in had if one not in kept])
    if not validate_only:
        await set_password(pool, name, password, change.valid)
        await _remove_mechanisms(pool, name, change.removed)
    return change


async def set_password(
    pool: ConnectionPool, name: str, password: str, mechanisms: Sequence[ScramMechanism]
) -> None:
    """Create a user, or change its password. The password does not leave this process."""
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        upsertion = ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism.value,
            iterations=ITERATIONS_DEFAULT,
            salt=salt,
            salted_password=salted_password(mechanism, password, salt, ITERATIONS_DEFAULT),
        )
        await _alter(pool, name, upsertions=(upsertion,))


async def remove_user(pool: ConnectionPool, name: str) -> None:
    """Remove all credentials of a user."""
    (user,) = await list_users(pool, name)
    had = [one for one in ScramMechanism if one.title in user.mechanisms]
    await _remove_mechanisms(pool, name, had)


async def _remove_mechanisms(
    pool: ConnectionPool, name: str, mechanisms: Sequence[ScramMechanism]
) -> None:
    for mechanism in mechanisms:
        deletion = ScramCredentialDeletion(name=name, mechanism=mechanism.value)
        await _alter(pool, name, deletions=(deletion,))


async def _alter(
    pool: ConnectionPool,
    name: str,
    *,
    deletions: tuple[ScramCredentialDeletion, ...] = (),
    upsertions: tuple[ScramCredentialUpsertion, ...] = (),
) -> None:
    """Send one change: Apache Kafka refuses two changes of a user in a request, also if they are
    of different mechanisms."""
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    response: AlterUserScramCredentialsResponse = await pool.request(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request
    )
    for row in response.results:
        check(row.error_code, row.error_message, f"user {name}")
