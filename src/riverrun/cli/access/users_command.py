"""``riverrun users``: list, add and remove users, and change their passwords."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    NOT_FOUND,
    USAGE,
    AsJson,
    Bootstrap,
    NoHeaders,
    Yes,
    confirm,
    fail,
)

if TYPE_CHECKING:
    from riverrun.security.scram import ScramMechanism

PASSWORD_VARIABLE: Final = "RIVERRUN_NEW_PASSWORD"

User = Annotated[str, typer.Argument(metavar="USER", show_default=False)]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE", help="Read the password from this file; - for stdin."
    ),
]
Mechanisms = Annotated[
    list[str],
    typer.Option(
        "--mechanism",
        metavar="SCRAM-SHA-256|SCRAM-SHA-512",
        show_default=False,
        help="A mechanism that the user may log in with; may be repeated. Default: both for a new "
        "user, else those that the user has. A user loses those that are not named.",
    ),
]


def register(app: typer.Typer) -> None:
    users = CommandApp(help="List, add and remove users that log in by SCRAM.")
    users.command("list")(list_users)
    users.command("add")(add)
    users.command("password")(password)
    users.command("remove")(remove)
    app.add_typer(users, name="users")


def list_users(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: AsJson = False, no_headers: NoHeaders = False
) -> None:
    """List the users and the mechanisms that they log in with. Passwords are not stored."""
    from riverrun.admin.access.user_admin import list_users as ask
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    found = run(bootstrap, ask)
    if as_json:
        print_json([user.described() for user in found])
        return
    table = Table(columns=["USER", "MECHANISMS"], empty="There are no users.")
    table.rows += [[user.name, ", ".join(user.mechanisms)] for user in found]
    print_tables([table], Layout(has_headings=not no_headers))


def add(
    user: User,
    password_file: PasswordFile = None,
    mechanisms: Mechanisms = [],  # noqa: B006
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Add a user. Asks for the password, or takes it from --password-file or RIVERRUN_NEW_PASSWORD.

    A new user has no rights: give it some with `riverrun acls add`.

    \b
    riverrun users add alice
    openssl rand -base64 24 | riverrun users add billing --password-file -
    """
    from riverrun.admin.access.user_admin import add_user
    from riverrun.cli.support.session import run

    if not user.strip():
        fail("the name of the user is empty", USAGE)
    wanted = _mechanisms(mechanisms)
    chosen = _password(user, password_file)
    run(bootstrap, lambda pool: add_user(pool, user, chosen, wanted))
    print(f"user {user} added; it has no rights until `riverrun acls add` gives it some")


def password(
    user: User,
    password_file: PasswordFile = None,
    mechanisms: Mechanisms = [],  # noqa: B006
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Change the password of a user. Open connections stay; new ones need the new password.

    The old password is valid for no mechanism afterwards. With --mechanism, the user keeps the
    named mechanisms alone.

    \b
    riverrun users password alice
    riverrun users password alice --mechanism SCRAM-SHA-512
    openssl rand -base64 24 | riverrun users password billing --password-file -
    """
    from riverrun.admin.access.user_admin import change_password
    from riverrun.cli.support.session import run

    wanted = _mechanisms(mechanisms)
    chosen = _password(user, password_file)
    changed = run(bootstrap, lambda pool: change_password(pool, user, chosen, wanted))
    valid = " and ".join(one.title for one in changed.valid)
    print(f"password of {user} changed; it is valid for {valid}")
    for mechanism in changed.removed:
        print(f"{mechanism.title} removed: the old password was valid for it")


def remove(user: User, yes: Yes = False, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT) -> None:
    """Remove a user. It cannot log in any more; open connections and its ACLs stay."""
    from riverrun.admin.access.user_admin import remove_user
    from riverrun.cli.support.session import run

    confirm(f"Remove user {user}?", is_agreed=yes)
    run(bootstrap, lambda pool: remove_user(pool, user))
    print(f"user {user} removed; its ACLs stay: `riverrun acls list --user {user}`")


def _mechanisms(names: list[str]) -> list[ScramMechanism]:
    from riverrun.admin.access.user_admin import parse_mechanisms

    try:
        return parse_mechanisms(names)
    except ValueError as error:
        fail(f"--mechanism {error}", USAGE)


def _password(user: str, path: Path | None) -> str:
    """The new password, from a file, a variable or the terminal. Never from the command line,
    which other users of the machine can see."""
    if path is not None:
        try:
            text = sys.stdin.read() if str(path) == "-" else path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", NOT_FOUND)
    elif PASSWORD_VARIABLE in os.environ:
        text = os.environ[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        text = typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True)
    else:
        fail(
            f"no password: give --password-file FILE, or {PASSWORD_VARIABLE}, or run it on a "
            "terminal",
            USAGE,
        )
    if not text.strip():
        fail("the password is empty", USAGE)
    return text.strip("\r\n")
