"""``riverrun acls``: list, add and remove access rules, and explain decisions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.completion import group_names, topic_names
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
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
    from riverrun.admin.access.rules import Resource, Right
    from riverrun.client.pool import ConnectionPool
    from riverrun.security.acls import AclOperation, AuthorizationResult

RESOURCE_OPTIONS: Final = (
    "--topic, --group, --transactional-id, --cluster, --delegation-token or --user-principal"
)

User = Annotated[
    str | None,
    typer.Option("--user", metavar="USER", help="The user: alice, User:alice, or * for all."),
]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="TOPIC", autocompletion=topic_names, help="A topic; * for all."
    ),
]
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", autocompletion=group_names, help="A consumer group."),
]
TransactionalId = Annotated[
    str | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id.")
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Token = Annotated[
    str | None,
    typer.Option("--delegation-token", metavar="ID", help="The id of a delegation token."),
]
TokenOwner = Annotated[
    str | None,
    typer.Option(
        "--user-principal",
        metavar="USER",
        help="The user whose delegation tokens CreateTokens and DescribeTokens are about.",
    ),
]
IsPrefix = Annotated[
    bool, typer.Option("--prefix", help="The name is a prefix: all resources that begin with it.")
]
Operations = Annotated[
    list[str],
    typer.Option(
        "--operation",
        metavar="OPERATION",
        show_default=False,
        help="Read, Write, Create, Delete, Alter, Describe, ... or All; may be repeated.",
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="IP", help="The client's address; * for all.")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny instead of allow; wins over allow.")]


def register(app: typer.Typer) -> None:
    acls = CommandApp(help="List, add and remove access rules, and explain decisions.")
    acls.command("list")(list_acls)
    acls.command("add")(add)
    acls.command("remove")(remove)
    acls.command("check")(check)
    app.add_typer(acls, name="acls")


def list_acls(
    user: User = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    token: Token = None,
    token_owner: TokenOwner = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """List access rules: all, or those that affect a user or a resource. Rules for all users
    affect each of them.

    \b
    riverrun acls list --user alice
    riverrun acls list --topic orders
    """
    from riverrun.admin.access.rule_admin import affecting_rules
    from riverrun.admin.access.rules import described_rule, principal_of
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    resources = _resources(topic, group, transactional_id, on_cluster, token, token_owner)
    principal = None if user is None else principal_of(user)
    found = run(bootstrap, lambda pool: affecting_rules(pool, resources, principal))
    if as_json:
        print_json([described_rule(acl) for acl in found])
        return
    table = Table(
        columns=["USER", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "HOST"],
        empty="There are no rules.",
    )
    for acl in found:
        row = described_rule(acl)
        name = f"{row['name']}*" if row["pattern"] == "prefixed" else row["name"]
        table.rows.append(
            [row["principal"], row["permission"], row["operation"], row["resource"], name, acl.host]
        )
    print_tables([table], Layout(has_headings=not no_headers))


def add(
    user: Annotated[str, typer.Option("--user", metavar="USER", help="The user; * for all.")],
    operations: Operations = [],  # noqa: B006
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    token: Token = None,
    token_owner: TokenOwner = None,
    is_prefix: IsPrefix = False,
    role: Annotated[
        str | None,
        typer.Option(
            "--role",
            metavar="producer|consumer",
            help="The rights of a producer (of --topic) or a consumer (of --topic in --group).",
        ),
    ] = None,
    host: Host = "*",
    deny: Deny = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Add access rules for a user.

    \b
    riverrun acls add --user alice --role producer --topic orders
    riverrun acls add --user alice --role consumer --topic orders --group billing
    riverrun acls add --user ops --operation Describe --cluster
    riverrun acls add --user team-a --operation All --topic team-a. --prefix
    riverrun acls add --user scheduler --operation CreateTokens --user-principal alice
    """
    from riverrun.admin.access.rule_admin import add_rules
    from riverrun.admin.access.rules import new_rule
    from riverrun.cli.support.session import run
    from riverrun.security.acls import AclPermission, PatternType

    resources = _resources(topic, group, transactional_id, on_cluster, token, token_owner)
    if not resources:
        fail(f"name a resource: {RESOURCE_OPTIONS}", USAGE)
    rights = _role_rights(role, resources) if role else []
    rights += [(kind, name, _operation(text)) for kind, name in resources for text in operations]
    if not rights:
        fail("name a right: --operation Read (may be repeated), or --role producer", USAGE)
    acls = [
        new_rule(
            right,
            user,
            host=host,
            pattern=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
            permission=AclPermission.DENY if deny else AclPermission.ALLOW,
        )
        for right in rights
    ]
    run(bootstrap, lambda pool: add_rules(pool, acls))
    for acl in acls:
        print(f"added: {acl}")


def remove(
    user: User = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    token: Token = None,
    token_owner: TokenOwner = None,
    operations: Operations = [],  # noqa: B006
    is_prefix: Annotated[
        bool | None,
        typer.Option("--prefix/--literal", help="Only rules with a prefix, or only with a name."),
    ] = None,
    is_denial: Annotated[
        bool | None, typer.Option("--deny/--allow", help="Only rules that deny, or that allow.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="IP", help="Only rules for this address.")
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Remove access rules. Shows the rules that match, and asks.

    \b
    riverrun acls remove --user alice
    riverrun acls remove --user alice --topic orders --operation Write
    """
    from riverrun.admin.access.rule_admin import find_rules, remove_rules
    from riverrun.admin.access.rules import principal_of
    from riverrun.cli.support.session import run
    from riverrun.security.acls import AclPermission, PatternType

    resources = _resources(topic, group, transactional_id, on_cluster, token, token_owner)
    if not user and not resources:
        fail("name a user or a resource; removing all rules at once is refused", USAGE)
    wanted = [_operation(text) for text in operations]
    principal = None if user is None else principal_of(user)
    found = [
        acl
        for acl in run(
            bootstrap, lambda pool: find_rules(pool, resources, principal, is_exact=True)
        )
        if (not wanted or acl.operation in wanted)
        and is_prefix in (None, acl.pattern_type is PatternType.PREFIXED)
        and is_denial in (None, acl.permission is AclPermission.DENY)
        and host in (None, acl.host)
    ]
    if not found:
        fail("no rule matches; `riverrun acls list` lists all", NOT_FOUND)
    for acl in found:
        print(acl)
    confirm(f"Remove {len(found)} {'rule' if len(found) == 1 else 'rules'}?", is_agreed=yes)
    run(bootstrap, lambda pool: remove_rules(pool, found))
    print(f"{len(found)} removed")


def check(
    user: Annotated[str, typer.Option("--user", metavar="USER", help="The user.")],
    operation: Annotated[
        str, typer.Option("--operation", metavar="OPERATION", help="Read, Write, Describe, ...")
    ],
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    token: Token = None,
    token_owner: TokenOwner = None,
    host: Host = "*",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Say whether a user may do something, and which rule decides. Exits with 1 if not.

    \b
    riverrun acls check --user alice --operation Write --topic orders
    """
    from riverrun.admin.access.rule_admin import check_right
    from riverrun.admin.access.user_admin import is_missing
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    resources = _resources(topic, group, transactional_id, on_cluster, token, token_owner)
    if len(resources) != 1:
        fail(f"name one resource: {RESOURCE_OPTIONS}", USAGE)
    wanted = _operation(operation)

    async def decided(pool: ConnectionPool) -> tuple[AuthorizationResult, bool]:
        decision = await check_right(pool, user, host, wanted, resources[0])
        is_unexplained = not decision.is_allowed and decision.rule is None
        return decision, is_unexplained and await is_missing(pool, user)

    decision, is_unknown_user = run(bootstrap, decided)
    if as_json:
        print_json({"allowed": decision.is_allowed, "reason": decision.reason})
    else:
        print(f"{'allowed' if decision.is_allowed else 'denied'}: {decision.reason}")
    if is_unknown_user:
        print(
            f"riverrun: there is no SCRAM user {user.removeprefix('User:')}; `riverrun users list` "
            "lists them. Users of certificates and tokens are not listed.",
            file=sys.stderr,
        )
    if not decision.is_allowed:
        raise typer.Exit(FAILED)


def _resources(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    on_cluster: bool,
    token: str | None,
    token_owner: str | None,
) -> list[Resource]:
    from riverrun.admin.access.rules import principal_of
    from riverrun.security.acls import CLUSTER_NAME, ResourceType

    named = [
        (ResourceType.TOPIC, topic),
        (ResourceType.GROUP, group),
        (ResourceType.TRANSACTIONAL_ID, transactional_id),
        (ResourceType.CLUSTER, CLUSTER_NAME if on_cluster else None),
        (ResourceType.DELEGATION_TOKEN, token),
        (ResourceType.USER, None if token_owner is None else principal_of(token_owner)),
    ]
    return [(kind, name) for kind, name in named if name is not None]


def _role_rights(role: str, resources: list[Resource]) -> list[Right]:
    from riverrun.admin.access.rules import role_rights
    from riverrun.security.acls import ResourceType

    try:
        rights = role_rights(role, resources)
    except ValueError as error:
        fail(f"--role: {error}", USAGE)
    kinds = [kind for kind, _ in resources]
    if ResourceType.TOPIC not in kinds:
        fail(f"--role {role}: name the topic with --topic", USAGE)
    if role == "consumer" and ResourceType.GROUP not in kinds:
        fail("--role consumer: name the group with --group", USAGE)
    return rights


def _operation(text: str) -> AclOperation:
    from riverrun.admin.access.rules import OPERATIONS, parse_choice

    try:
        return parse_choice(text, OPERATIONS)
    except ValueError as error:
        fail(f"--operation {error}", USAGE)
