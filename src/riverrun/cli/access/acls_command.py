"""``riverrun acls``: list, add and remove access rules, and explain decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

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
    from riverrun.client.pool import ConnectionPool
    from riverrun.security.acls import Acl, AclOperation, AuthorizationResult, PatternType

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

ROLES: Final = {
    "producer": {"topic": ("Write", "Describe", "Create"), "transactional": ("Write", "Describe")},
    "consumer": {"topic": ("Read", "Describe"), "group": ("Read",)},
}


def register(app: typer.Typer) -> None:
    acls = CommandApp(help="List, add and remove access rules, and explain decisions.")
    acls.command("list")(list_acls)
    acls.command("add")(add)
    acls.command("remove")(remove)
    acls.command("check")(check_right)
    app.add_typer(acls, name="acls")


def list_acls(
    user: User = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """List access rules: all, or those that affect a user or a resource.

    \b
    riverrun acls list --user alice
    riverrun acls list --topic orders
    """
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    found = run(bootstrap, _asking(user, topic, group, transactional_id, on_cluster))
    if as_json:
        print_json([_as_row(acl) for acl in found])
        return
    table = Table(
        columns=["USER", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "HOST"],
        empty="There are no rules.",
    )
    for acl in found:
        row = _as_row(acl)
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
    """
    from riverrun.admin.access.rule_admin import add_rules
    from riverrun.cli.support.session import run

    resources = _resources(topic, group, transactional_id, on_cluster)
    if not resources:
        fail("name a resource: --topic, --group, --transactional-id or --cluster", USAGE)
    pairs = _role_pairs(role, resources) if role else []
    pairs += [(kind, name, _operation(text)) for kind, name in resources for text in operations]
    if not pairs:
        fail("name a right: --operation Read (may be repeated), or --role producer", USAGE)
    from riverrun.security.acls import AclPermission, PatternType

    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    permission = AclPermission.DENY if deny else AclPermission.ALLOW
    acls = [
        _acl(kind, name, operation, _principal(user), host, pattern, permission)
        for kind, name, operation in pairs
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
    operations: Operations = [],  # noqa: B006
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Remove access rules. Shows the rules that match, and asks.

    \b
    riverrun acls remove --user alice
    riverrun acls remove --user alice --topic orders --operation Write
    """
    from riverrun.admin.access.rule_admin import remove_rules
    from riverrun.cli.support.session import run

    if not any((user, topic, group, transactional_id, on_cluster)):
        fail("name a user or a resource; removing all rules at once is refused", USAGE)
    wanted = [_operation(text) for text in operations]
    found = run(bootstrap, _asking(user, topic, group, transactional_id, on_cluster, is_exact=True))
    found = [acl for acl in found if not wanted or acl.operation in wanted]
    if not found:
        fail("no rule matches; `riverrun acls list` lists all", NOT_FOUND)
    for acl in found:
        print(acl)
    confirm(f"Remove {len(found)} {'rule' if len(found) == 1 else 'rules'}?", is_agreed=yes)
    run(bootstrap, lambda pool: remove_rules(pool, found))
    print(f"{len(found)} removed")


def check_right(
    user: Annotated[str, typer.Option("--user", metavar="USER", help="The user.")],
    operation: Annotated[
        str, typer.Option("--operation", metavar="OPERATION", help="Read, Write, Describe, ...")
    ],
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    on_cluster: OnCluster = False,
    host: Host = "*",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Say whether a user may do something, and which rule decides. Exits with 1 if not.

    \b
    riverrun acls check --user alice --operation Write --topic orders
    """
    from riverrun.cli.support.output import print_json
    from riverrun.cli.support.session import run

    resources = _resources(topic, group, transactional_id, on_cluster)
    if len(resources) != 1:
        fail("name one resource: --topic, --group, --transactional-id or --cluster", USAGE)
    ((kind, name),) = resources
    wanted = _operation(operation)

    async def ask(pool: ConnectionPool) -> AuthorizationResult:
        from riverrun.admin.access.rule_admin import authorizer_settings, list_rules
        from riverrun.security.acls import Authorizer
        from riverrun.security.principal import Principal

        acls = await list_rules(pool, _filter())
        super_users, is_open = await authorizer_settings(pool)
        authorizer = Authorizer(acls, super_users=super_users, is_open=is_open)
        return authorizer.decide(Principal.parse(_principal(user)), host, wanted, kind, name)

    decision = run(bootstrap, ask)
    if as_json:
        print_json({"allowed": decision.is_allowed, "reason": decision.reason})
    else:
        print(f"{'allowed' if decision.is_allowed else 'denied'}: {decision.reason}")
    if not decision.is_allowed:
        raise typer.Exit(FAILED)


def _asking(
    user: str | None,
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    on_cluster: bool,
    *,
    is_exact: bool = False,
) -> Any:
    """A command that asks for the rules of a user and of resources."""
    resources: list[tuple[Any, str | None]] = [
        *_resources(topic, group, transactional_id, on_cluster)
    ]
    principal = None if user is None else _principal(user)

    async def ask(pool: ConnectionPool) -> list[Acl]:
        from riverrun.admin.access.rule_admin import list_rules
        from riverrun.security.acls import PatternType

        pattern = PatternType.ANY if is_exact else PatternType.MATCH
        found: dict[Acl, None] = {}
        for kind, name in resources or [(None, None)]:
            found |= dict.fromkeys(await list_rules(pool, _filter(kind, name, principal, pattern)))
        return list(found)

    return ask


def _filter(
    kind: Any = None,
    name: str | None = None,
    principal: str | None = None,
    pattern: PatternType | None = None,
) -> Any:
    from riverrun.security.acls import (
        AclFilter,
        AclOperation,
        AclPermission,
        PatternType,
        ResourceType,
    )

    return AclFilter(
        resource_type=ResourceType.ANY if kind is None else kind,
        name=name,
        pattern_type=PatternType.ANY if pattern is None else pattern,
        principal=principal,
        host=None,
        operation=AclOperation.ANY,
        permission=AclPermission.ANY,
    )


def _resources(
    topic: str | None, group: str | None, transactional_id: str | None, on_cluster: bool
) -> list[tuple[Any, str]]:
    from riverrun.security.acls import CLUSTER_NAME, ResourceType

    named = [
        (ResourceType.TOPIC, topic),
        (ResourceType.GROUP, group),
        (ResourceType.TRANSACTIONAL_ID, transactional_id),
        (ResourceType.CLUSTER, CLUSTER_NAME if on_cluster else None),
    ]
    return [(kind, name) for kind, name in named if name is not None]


def _role_pairs(role: str, resources: list[tuple[Any, str]]) -> list[tuple[Any, str, AclOperation]]:
    from riverrun.security.acls import ResourceType

    if role not in ROLES:
        fail("--role: choose producer or consumer", USAGE)
    rights = ROLES[role]
    by_kind = {
        ResourceType.TOPIC: rights.get("topic", ()),
        ResourceType.GROUP: rights.get("group", ()),
        ResourceType.TRANSACTIONAL_ID: rights.get("transactional", ()),
    }
    kinds = [kind for kind, _ in resources]
    if ResourceType.TOPIC not in kinds:
        fail(f"--role {role}: name the topic with --topic", USAGE)
    if role == "consumer" and ResourceType.GROUP not in kinds:
        fail("--role consumer: name the group with --group", USAGE)
    return [
        (kind, name, _operation(text)) for kind, name in resources for text in by_kind.get(kind, ())
    ]


def _operation(text: str) -> AclOperation:
    from riverrun.security.acls import AclOperation

    wanted = text.replace("_", "").replace("-", "").upper()
    known = {one.name.replace("_", ""): one for one in AclOperation if one > AclOperation.ANY}
    if wanted not in known:
        names = ", ".join(_title(one.name) for one in known.values())
        fail(f"--operation {text}: choose one of {names}", USAGE)
    return known[wanted]


def _principal(user: str) -> str:
    return user if ":" in user else f"User:{user}"


def _acl(
    kind: Any,
    name: str,
    operation: AclOperation,
    principal: str,
    host: str,
    pattern: Any,
    permission: Any,
) -> Acl:
    from riverrun.admin.access.rule_admin import NO_ID
    from riverrun.security.acls import Acl

    return Acl(
        id=NO_ID,
        resource_type=kind,
        pattern_type=pattern,
        name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def _title(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _as_row(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": _title(acl.operation.name),
        "resource": _title(acl.resource_type.name),
        "name": acl.name,
        "pattern": acl.pattern_type.name.lower(),
        "host": acl.host,
    }
