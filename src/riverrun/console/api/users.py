"""Users that log in by SCRAM: list, add, remove, and change passwords.

A password is turned into SCRAM credentials here, and is sent to no node. It is in no response and
in no command.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field

from riverrun.admin.access.user_admin import (
    ScramUser,
    add_user,
    change_password,
    list_users,
    parse_mechanisms,
    remove_user,
)
from riverrun.console.listing import ItemPage, ListQuery, matching, ordered, page_of
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ClusterRequest
from riverrun.security.scram import ScramMechanism

NAME_CHARS_MAX: Final = 1024
PASSWORD_CHARS_MAX: Final = 4096

UserText = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
PasswordText = Annotated[str, Meta(min_length=1, max_length=PASSWORD_CHARS_MAX)]


class UserMechanism(Struct, frozen=True, kw_only=True):
    """A mechanism that a user may log in with."""

    mechanism: str
    iterations: int


class UserRow(Struct, frozen=True, kw_only=True):
    """A user. Passwords are not stored."""

    name: str
    mechanisms: list[UserMechanism]


class NewUserBody(Struct, kw_only=True):
    """Without mechanisms, the user gets all of them."""

    name: UserText
    password: PasswordText
    mechanisms: list[str] = field(default_factory=list)
    dry_run: bool = False


class PasswordBody(Struct, kw_only=True):
    """With mechanisms, the old password stays valid for the other ones."""

    password: PasswordText
    mechanisms: list[str] = field(default_factory=list)
    dry_run: bool = False


class UserQuery(Struct, kw_only=True):
    """The query of a removal."""

    dry_run: bool = False


class UserResult(Struct, frozen=True, kw_only=True):
    """The user that changed, or would change. The command asks for the password."""

    dry_run: bool
    command: str
    name: str


async def get_users(request: ClusterRequest) -> ItemPage[UserRow]:
    query: ListQuery = request.query
    found = matching(await list_users(request.pool), query, lambda user: user.name)
    rows = [_row(user) for user in found]
    return page_of(ordered(rows, query, SORTS, "name"), query)


SORTS: Final[dict[str, Any]] = {"name": lambda row: row.name}


def _row(user: ScramUser) -> UserRow:
    rows = [
        UserMechanism(mechanism=name, iterations=count) for name, count in user.mechanisms.items()
    ]
    return UserRow(name=user.name, mechanisms=rows)


async def create_user(request: ClusterRequest) -> UserResult:
    body: NewUserBody = request.body
    chosen = _mechanisms(body.mechanisms)
    password = _password(body.password)
    await add_user(request.pool, body.name, password, chosen, validate_only=body.dry_run)
    return UserResult(
        dry_run=body.dry_run, command=_command(request, "add", body.name, chosen), name=body.name
    )


async def set_user_password(request: ClusterRequest) -> UserResult:
    body: PasswordBody = request.body
    name = request.params["user"]
    chosen = _mechanisms(body.mechanisms)
    password = _password(body.password)
    await change_password(request.pool, name, password, chosen, validate_only=body.dry_run)
    return UserResult(
        dry_run=body.dry_run, command=_command(request, "password", name, chosen), name=name
    )


async def delete_user(request: ClusterRequest) -> UserResult:
    query: UserQuery = request.query
    name = request.params["user"]
    if query.dry_run:
        await list_users(request.pool, name)
    else:
        await remove_user(request.pool, name)
    command = request.cluster.command("users", "remove", name, "--yes")
    return UserResult(dry_run=query.dry_run, command=command, name=name)


def _mechanisms(names: list[str]) -> list[ScramMechanism]:
    try:
        return parse_mechanisms(names)
    except ValueError as error:
        raise problem("invalid", f"Mechanism {error}.") from None


def _password(text: str) -> str:
    """As the command line takes it: without the end of a line, and not blank."""
    if not text.strip():
        raise problem("invalid", "The password is empty.", "Choose one.")
    return text.strip("\r\n")


def _command(
    request: ClusterRequest, verb: str, name: str, mechanisms: list[ScramMechanism]
) -> str:
    options = [word for one in mechanisms for word in ("--mechanism", one.title)]
    return request.cluster.command("users", verb, name, *options)


ENDPOINTS = (
    ApiEndpoint(
        "GET",
        "users",
        get_users,
        "Users and their mechanisms",
        query=ListQuery,
        response=ItemPage[UserRow],
        tag="access",
    ),
    ApiEndpoint(
        "POST",
        "users",
        create_user,
        "Add a user",
        body=NewUserBody,
        response=UserResult,
        tag="access",
    ),
    ApiEndpoint(
        "PUT",
        "users/{user}/password",
        set_user_password,
        "Change the password of a user",
        body=PasswordBody,
        response=UserResult,
        tag="access",
    ),
    ApiEndpoint(
        "DELETE",
        "users/{user}",
        delete_user,
        "Remove a user; its ACLs stay",
        query=UserQuery,
        response=UserResult,
        tag="access",
    ),
)
