"""``riverrun tokens``: create, list, renew and expire delegation tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    USAGE,
    AsJson,
    Bootstrap,
    NoHeaders,
    Yes,
    confirm,
    fail,
)

if TYPE_CHECKING:
    from riverrun.admin.access.token_admin import NewToken

MECHANISM_DEFAULT: Final = "SCRAM-SHA-512"
DURATION_MS_MAX: Final = 5000 * 7 * 24 * 3_600_000

TokenId = Annotated[
    str,
    typer.Argument(metavar="TOKEN", show_default=False, help="The id; `tokens list` shows it."),
]


def register(app: typer.Typer) -> None:
    tokens = CommandApp(help="Create, list, renew and expire delegation tokens of users.")
    tokens.command("create")(create)
    tokens.command("list")(list_tokens)
    tokens.command("renew")(renew)
    tokens.command("expire")(expire)
    app.add_typer(tokens, name="tokens")


def create(
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner",
            metavar="USER",
            help="The user whose rights the token has; default: your own user. For another one "
            "you need the right CreateTokens on it.",
        ),
    ] = None,
    renewers: Annotated[
        list[str],
        typer.Option(
            "--renewer",
            metavar="USER",
            show_default=False,
            help="A user that may renew and expire the token, besides its owner; may be repeated.",
        ),
    ] = [],  # noqa: B006
    lifetime: Annotated[
        str | None,
        typer.Option(
            "--max-lifetime",
            metavar="DURATION",
            help="The token ends after this time, however often it is renewed: 12h, 3d. Default "
            "and maximum: delegation.token.max.lifetime.ms of the nodes, 7 days.",
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a delegation token: a login for programs, with the rights of a user.

    Prints the lines with which a client logs in, for its file of properties: by SCRAM, with the id
    of the token as user name, its secret as password, and tokenauth="true". The other lines of the
    file, such as those for TLS, are the same as for a user. The secret is shown only now.

    The token expires after delegation.token.expiry.time.ms (a day) unless it is renewed. The nodes
    need delegation.token.secret.key.

    \b
    riverrun tokens create >> job.properties
    riverrun tokens create --renewer scheduler --max-lifetime 3d
    riverrun tokens create --owner alice --json
    """
    from riverrun.admin.access.token_admin import create_token
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    for option, name in [("--owner", owner), *(("--renewer", each) for each in renewers)]:
        _check_user(option, name)
    lifetime_ms = _duration("--max-lifetime", lifetime)
    made = run(
        bootstrap,
        lambda pool: create_token(pool, owner=owner, renewers=renewers, lifetime_ms=lifetime_ms),
    )
    if as_json:
        print_json(made.described())
        return
    for line in _explained(made, _mechanism(bootstrap)):
        print(line)


def list_tokens(
    owners: Annotated[
        list[str],
        typer.Option(
            "--owner",
            metavar="USER",
            show_default=False,
            help="Only tokens of this user; may be repeated.",
        ),
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """List the tokens that you own, have created or may renew. Secrets are not shown.

    To see the tokens of another user, you need the right DescribeTokens on it. A token expires at
    EXPIRES unless it is renewed, and ends at ENDS in any case.

    \b
    riverrun tokens list
    riverrun tokens list --owner alice --json
    """
    from riverrun.admin.access.token_admin import list_tokens as ask
    from riverrun.admin.tables import Table
    from riverrun.admin.times import in_utc
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    for name in owners:
        _check_user("--owner", name)
    found = run(bootstrap, lambda pool: ask(pool, owners))
    if as_json:
        print_json([token.described() for token in found])
        return
    table = Table(
        columns=["TOKEN", "OWNER", "CREATED-BY", "RENEWERS", "CREATED", "EXPIRES", "ENDS"],
        empty="There are no tokens that you may see.",
    )
    for token in found:
        times = map(in_utc, (token.created_ms, token.expires_ms, token.ends_ms))
        renewers = ",".join(token.renewers) or None
        table.rows.append([token.id, token.owner, token.requester, renewers, *times])
    print_tables([table], Layout(has_headings=not no_headers))


def renew(
    token: TokenId,
    period: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="The token expires after this time from now: 12h. Default and maximum: "
            "delegation.token.expiry.time.ms of the nodes, a day.",
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let a token expire later. Only its owner and its renewers may.

    A token cannot be renewed beyond its end; `riverrun tokens list` shows it. Programs go on with
    the same secret.

    \b
    riverrun tokens renew TOKEN
    riverrun tokens renew TOKEN --for 12h
    """
    from riverrun.admin.access.token_admin import renew_token
    from riverrun.admin.times import in_utc
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    period_ms = _duration("--for", period)
    expires_ms = run(bootstrap, lambda pool: renew_token(pool, token, period_ms))
    if as_json:
        print_json({"id": token, "expires_ms": expires_ms})
        return
    print(f"token {token} expires at {in_utc(expires_ms)}")


def expire(
    token: TokenId,
    period: Annotated[
        str | None,
        typer.Option(
            "--in", metavar="DURATION", help="Expire after this time, such as 1h; default: now."
        ),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Remove a token at once, or let it expire soon. Only its owner and its renewers may.

    Nobody can log in with it afterwards. Open connections stay until the time at which the token
    would have expired when they logged in.

    \b
    riverrun tokens expire TOKEN
    riverrun tokens expire TOKEN --in 1h
    """
    from riverrun.admin.access.token_admin import expire_token
    from riverrun.admin.times import in_utc
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    period_ms = _duration("--in", period)
    confirm(
        f"Remove token {token}?" if period is None else f"Let token {token} expire in {period}?",
        is_agreed=yes,
    )
    expires_ms = run(bootstrap, lambda pool: expire_token(pool, token, period_ms))
    if as_json:
        print_json({"id": token, "expires_ms": expires_ms})
    elif period is None:
        print(f"token {token} removed; open connections that logged in with it stay")
    else:
        print(f"token {token} expires at {in_utc(expires_ms)}")


def _explained(made: NewToken, mechanism: str) -> list[str]:
    """Lines of a file of properties, with comments for people."""
    from riverrun.admin.times import in_utc

    token = made.token
    return [
        f"# Token {token.id} of {token.owner}.",
        f"# Expires at {in_utc(token.expires_ms)}; `riverrun tokens renew {token.id}` extends it, "
        f"up to {in_utc(token.ends_ms)}.",
        "# The secret is not shown again: keep these lines like a password.",
        *made.properties(mechanism),
    ]


def _mechanism(bootstrap: str) -> str:
    """The listener accepts the mechanism of our own login; other logins do not work with tokens."""
    from riverrun.cli.support.client_config import login_of
    from riverrun.security.scram import ScramMechanism

    own = login_of(bootstrap).get("sasl.mechanism", "")
    return MECHANISM_DEFAULT if ScramMechanism.named(own) is None else own


def _check_user(option: str, name: str | None) -> None:
    if name is not None and not name.rpartition(":")[2]:
        fail(f"{option}: expected a user such as alice", USAGE)


def _duration(option: str, text: str | None) -> int | None:
    from riverrun.admin.times import parse_duration

    try:
        found = None if text is None else parse_duration(text)
    except ValueError as error:
        fail(f"{option} {text}: {error}", USAGE)
    if found is not None and not 0 < found <= DURATION_MS_MAX:
        fail(f"{option} {text}: expected a time between 1ms and 5000 weeks", USAGE)
    return found
