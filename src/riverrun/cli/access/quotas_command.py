"""``riverrun quotas``: list, set and remove limits of clients, and show their use."""

from __future__ import annotations

import sys
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
    parse_settings,
)

if TYPE_CHECKING:
    from riverrun.admin.access.quota_admin import ListedQuota
    from riverrun.admin.tables import Cell
    from riverrun.security.quotas import Entity

DEFAULT_NAME: Final = "<default>"

User = Annotated[
    str | None, typer.Option("--user", metavar="USER", help="The clients of this user.")
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="ID", help="The clients with this client id."),
]
Address = Annotated[
    str | None, typer.Option("--ip", metavar="ADDRESS", help="The clients at this address.")
]
EveryUser = Annotated[
    bool, typer.Option("--default-user", help="Each user that has no quota of its own.")
]
EveryClientId = Annotated[
    bool, typer.Option("--default-client-id", help="Each client id that has no quota of its own.")
]
EveryAddress = Annotated[
    bool, typer.Option("--default-ip", help="Each address that has no quota of its own.")
]


def register(app: typer.Typer) -> None:
    quotas = CommandApp(help="List, set and remove limits of clients, and show their use.")
    quotas.command("list")(list_quotas)
    quotas.command("set")(set_quotas)
    quotas.command("remove")(remove)
    app.add_typer(quotas, name="quotas")


def list_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default_user: EveryUser = False,
    default_client_id: EveryClientId = False,
    default_ip: EveryAddress = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """List quotas and what clients use of them now.

    Every node enforces the quotas by itself. USED is the highest rate on any node, averaged over
    the last seconds, and BUSIEST says where. --json lists the use on each node. The use of
    connection_creation_rate is not measured.

    \b
    riverrun quotas list
    riverrun quotas list --user alice
    riverrun quotas list --json | jq '.[] | {quota, limit, used: .uses[0].rate}'
    """
    from riverrun.admin.access.quota_admin import list_with_uses
    from riverrun.admin.tables import Table
    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.session import run

    entity = _entity(user, client_id, ip, default_user, default_client_id, default_ip)

    found, silent = run(bootstrap, lambda pool: list_with_uses(pool, entity))
    if silent:
        names = ", ".join(map(str, silent))
        print(f"riverrun: no use is known of node {names}", file=sys.stderr)
    if as_json:
        print_json([quota.described() for quota in found])
        return
    table = Table(
        columns=["USER", "CLIENT-ID", "IP", "QUOTA", "LIMIT", "USED", "BUSIEST"],
        optional=["USER", "CLIENT-ID", "IP"],
        empty="There are no quotas: no client is limited.",
    )
    table.rows += [_row(quota) for quota in found]
    print_tables([table], Layout(has_headings=not no_headers))


def set_quotas(
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA=VALUE...", show_default=False)],
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default_user: EveryUser = False,
    default_client_id: EveryClientId = False,
    default_ip: EveryAddress = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Set quotas of a user, a client id, a user with a client id, or an address.

    \b
    producer_byte_rate         bytes that clients send in a second: 10MB, 64MiB, 500kB
    consumer_byte_rate         bytes that clients receive in a second
    request_percentage         time of a node that requests may take: 100 is all of it
    controller_mutation_rate   partitions created and deleted in a second
    connection_creation_rate   new connections in a second; only with --ip or --default-ip

    All clients that a quota is for share it, on each node. If several quotas fit, the most
    specific one holds: user and client id, then user, then client id; a name before a default.

    \b
    riverrun quotas set --user alice producer_byte_rate=10MB consumer_byte_rate=20MB
    riverrun quotas set --user alice --client-id nightly-export consumer_byte_rate=2MB
    riverrun quotas set --default-user producer_byte_rate=1MB
    riverrun quotas set --default-ip connection_creation_rate=50
    """
    from riverrun.admin.access.quota_admin import alter_quotas
    from riverrun.cli.support.session import run

    entity = _entity(user, client_id, ip, default_user, default_client_id, default_ip)
    _require(entity)
    values = {key: _value(entity, key, text) for key, text in parse_settings(quotas, "").items()}
    run(bootstrap, lambda pool: alter_quotas(pool, entity, values))
    for key, value in values.items():
        print(f"{_named(entity)}: {key} = {value:.15g}")


def remove(
    quotas: Annotated[list[str] | None, typer.Argument(metavar="QUOTA", show_default=False)] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default_user: EveryUser = False,
    default_client_id: EveryClientId = False,
    default_ip: EveryAddress = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Remove the named quotas, or all of a user, client id or address. Less specific ones then
    hold.

    \b
    riverrun quotas remove --user alice producer_byte_rate
    riverrun quotas remove --default-user --yes
    """
    from riverrun.admin.access.quota_admin import alter_quotas
    from riverrun.admin.access.quota_admin import list_quotas as ask
    from riverrun.cli.support.session import run

    entity = _entity(user, client_id, ip, default_user, default_client_id, default_ip)
    _require(entity)
    known = [quota.key for quota in run(bootstrap, lambda pool: ask(pool, entity, is_strict=True))]
    missing = [key for key in quotas or [] if key not in known]
    if missing or not known:
        about = f"no quota {', '.join(missing)}" if missing else "no quota"
        fail(f"{_named(entity)} has {about}; `riverrun quotas list` lists all", NOT_FOUND)
    wanted = quotas or known
    confirm(f"Remove {', '.join(wanted)} of {_named(entity)}?", is_agreed=yes)
    run(bootstrap, lambda pool: alter_quotas(pool, entity, dict.fromkeys(wanted)))
    for key in wanted:
        print(f"{_named(entity)}: {key} removed")


def _entity(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> dict[str, str | None]:
    from riverrun.security.quotas import CLIENT_ID, IP, USER

    entity: dict[str, str | None] = {}
    for kind, name, is_default in (
        (USER, user, default_user),
        (CLIENT_ID, client_id, default_client_id),
        (IP, ip, default_ip),
    ):
        if name is not None and is_default:
            fail(f"choose --{kind} or --default-{kind}, not both", USAGE)
        if name is not None or is_default:
            entity[kind] = name
    if IP in entity and len(entity) > 1:
        fail("an address cannot be combined with a user or a client id", USAGE)
    return entity


def _require(entity: Entity) -> None:
    if not entity:
        fail(
            "name whose quota it is: --user, --client-id, --ip, --default-user, "
            "--default-client-id or --default-ip",
            USAGE,
        )


def _value(entity: Entity, key: str, text: str) -> float:
    """The value of a quota, checked here because the words of the command line are known here."""
    from riverrun.cli.support.sizes import parse_bytes
    from riverrun.security.quotas import (
        BYTE_KINDS,
        CLIENT_KINDS,
        IP,
        IP_KINDS,
        key_refusal,
    )

    kinds = IP_KINDS if IP in entity else CLIENT_KINDS
    if key not in kinds:
        fail(f"{key}: {_named(entity)} can have {', '.join(kinds)}", USAGE)
    value: float | None
    if key in BYTE_KINDS:
        value = parse_bytes(text)
        expected = "a number of bytes such as 10MB or 64MiB"
    else:
        expected = "a number greater than 0"
        try:
            value = float(text)
        except ValueError:
            value = None
    if value is None or key_refusal(entity, key, value) is not None:
        fail(f"{key}={text}: expected {expected}", USAGE)
    return value


def _named(entity: Entity) -> str:
    """``user alice, client-id app``."""
    parts = [f"{kind} {DEFAULT_NAME if name is None else name}" for kind, name in entity.items()]
    return ", ".join(parts)


def _row(quota: ListedQuota) -> list[Cell]:
    from riverrun.security.quotas import ENTITY_TYPES

    entity, uses = quota.entity, quota.uses
    names: list[Cell] = [
        (entity[kind] or DEFAULT_NAME) if kind in entity else None for kind in ENTITY_TYPES
    ]
    used: Cell = None
    busiest: Cell = None
    if uses:
        client = [uses[0].use.user, uses[0].use.client_id] if None in entity.values() else []
        used = _amount(quota.key, uses[0].use.rate)
        busiest = ", ".join([*filter(None, client), f"node {uses[0].node}"])
    return [*names, quota.key, _amount(quota.key, quota.limit), used, busiest]


def _amount(key: str, value: float) -> Cell:
    from riverrun.admin.tables import ByteCount
    from riverrun.security.quotas import BYTE_KINDS

    return ByteCount(round(value)) if key in BYTE_KINDS else round(value, 3)
