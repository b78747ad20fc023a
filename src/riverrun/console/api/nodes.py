"""Nodes: their state, settings and maintenance."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from riverrun.admin.balance.broker_modes import (
    MaintenanceEffect,
    effect_of,
    named,
    return_leaders,
    set_mode,
)
from riverrun.admin.balance.cluster_state import ask_state
from riverrun.admin.broker_settings import ACTIVE, DECOMMISSIONING, MAINTENANCE, MODE
from riverrun.admin.cluster.configs import (
    SettingsChange,
    Source,
    ask_settings,
    change_settings,
)
from riverrun.admin.tables import counted
from riverrun.console.api.overview import dead_nodes
from riverrun.console.api.plans import node_of
from riverrun.console.cluster_facts import CORDONED, SharedFacts
from riverrun.console.configs import (
    ConfigBody,
    ConfigChange,
    ConfigList,
    assignments,
    differences,
    items_of,
)
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ChangeResult, ClusterRequest
from riverrun.ports.aio import run_together

TAG: Final = "nodes"


class NodeItem(Struct, kw_only=True):
    """A broker. Values that are not known are null."""

    node: int
    alive: bool
    controller: bool
    """Whether it is the active controller."""
    host: str
    port: int
    rack: str | None
    mode: str
    """active, maintenance or decommissioning."""
    cordoned: bool
    """Whether it gets no new replicas."""
    leaders: int
    replicas: int
    bytes_in: float | None
    """Bytes per second from producers."""
    bytes_out: float | None
    disk_used: int | None
    """Bytes of its replicas."""
    disk_free: int | None
    disk_total: int | None
    version: str | None


class NodeList(Struct, kw_only=True):
    items: list[NodeItem]


class LogDirectoryItem(Struct, kw_only=True):
    path: str
    size: int | None
    offline: bool
    free: int | None
    total: int | None


class NodeDetails(NodeItem, kw_only=True):
    """A broker with its data directories."""

    started_ms: int | None
    memory: int | None
    connections: int | None
    log_dirs: list[LogDirectoryItem]
    under_replicated: int
    """Partitions with a replica on this node that are not fully replicated."""
    voter: bool | None
    """Whether it votes in the metadata quorum. Null without the right to see that."""
    settings_link: str


class MaintenanceBody(Struct, kw_only=True):
    """``force`` also if another node is in maintenance, or data becomes unavailable."""

    on: bool
    force: bool = False
    dry_run: bool = False


class MaintenanceResult(ChangeResult, kw_only=True):
    """What stops working while the node is away."""

    node: int
    mode: str
    leaders: int
    """Leaderships that move to other nodes, or back to this one."""
    offline: list[str]
    """Partitions without another replica in sync."""
    not_writable: list[str]
    """Partitions that fall below min.insync.replicas."""


async def list_nodes(request: ClusterRequest) -> NodeList:
    return NodeList(items=await _nodes(request))


async def _nodes(request: ClusterRequest) -> list[NodeItem]:
    facts = SharedFacts(request.connected)
    await run_together([facts.disks(), facts.rates(), facts.nodes(), facts.quorum(), facts.sizes()])
    brokers, quorum = await facts.brokers(), await facts.quorum()
    counts = (await facts.partitions()).counts
    settings, states, rates = await facts.settings(), await facts.nodes(), await facts.rates()
    disks, sizes = await facts.disks(), await facts.sizes()
    dead = await dead_nodes(facts, brokers)
    metadata = await request.metadata()
    controller = quorum.leader if quorum is not None else metadata.controller_id
    found = []
    for broker in brokers:
        node = broker.broker_id
        own = settings.get(node, {})
        rows = [row for row in disks if row.node == node and row.path is not None]
        used = [size for (at, _), size in sizes.items() if at == node]
        frees = [row.free_bytes for row in rows if row.free_bytes is not None]
        totals = [row.total_bytes for row in rows if row.total_bytes is not None]
        rate = rates.get(node)
        found.append(
            NodeItem(
                node=node,
                alive=node not in dead,
                controller=node == controller,
                host=broker.host,
                port=broker.port,
                rack=broker.rack or None,
                mode=(own[MODE].value if MODE in own else None) or ACTIVE,
                cordoned=any(row.is_cordoned for row in rows)
                or bool(own[CORDONED].value if CORDONED in own else ""),
                leaders=counts.leaders[node],
                replicas=counts.replicas[node],
                bytes_in=None if rate is None else rate.newest("bytes_in"),
                bytes_out=None if rate is None else rate.newest("bytes_out"),
                disk_used=sum(used) if used else None,
                disk_free=sum(frees) if frees else None,
                disk_total=sum(totals) if totals else None,
                version=states[node].version if node in states else None,
            )
        )
    return found


async def get_node(request: ClusterRequest) -> NodeDetails:
    node = node_of(request)
    item = next((item for item in await _nodes(request) if item.node == node), None)
    if item is None:
        raise problem("not_found", f"There is no node {node}.", "GET nodes lists all.")
    facts = SharedFacts(request.connected)
    sizes, state = await facts.sizes(), (await facts.nodes()).get(node)
    directories = [
        LogDirectoryItem(
            path=row.path,
            size=sizes.get((node, row.path)),
            offline=row.error is not None,
            free=row.free_bytes,
            total=row.total_bytes,
        )
        for row in await facts.disks()
        if row.node == node and row.path is not None
    ]
    quorum = await facts.quorum()
    known = {name: getattr(item, name) for name in NodeItem.__struct_fields__}
    return NodeDetails(
        **known,
        started_ms=None if state is None else state.started_ms,
        memory=None if state is None else state.memory_bytes,
        connections=None if state is None else state.connections,
        log_dirs=directories,
        under_replicated=(await facts.partitions()).counts.under_replicated[node],
        voter=None if quorum is None else any(one.id == node for one in quorum.voters),
        settings_link=f"/ui/{request.cluster.name}/nodes/{node}?tab=settings",
    )


async def get_configs(request: ClusterRequest) -> ConfigList:
    node = node_of(request)
    report = await ask_settings(request.pool, node, (), with_defaults=True)
    return items_of(report.rows, Source.NODE)


async def change_configs(request: ClusterRequest) -> ConfigChange:
    body: ConfigBody = request.body
    node = node_of(request)
    changed = body.values()
    report = await ask_settings(request.pool, node, (), with_defaults=True)
    await change_settings(
        request.pool,
        SettingsChange(node=node, values=changed),
        validate_only=body.dry_run,
        may_be_unknown=False,
    )
    pairs = assignments(report.rows, body)
    at = ("--node", str(node))
    commands = []
    if pairs:
        commands.append(request.cluster.command("cluster", "config", "set", *pairs, *at))
    if body.reset:
        commands.append(request.cluster.command("cluster", "config", "unset", *body.reset, *at))
    return ConfigChange(
        dry_run=body.dry_run,
        command=" && ".join(commands),
        changes=differences(report.rows, body),
    )


async def set_maintenance(request: ClusterRequest) -> MaintenanceResult:
    """Let a node lead nothing while you work on it, and let it lead again afterwards."""
    body: MaintenanceBody = request.body
    node = node_of(request)
    state = await ask_state(request.pool, needed=node)
    if state.broker(node).mode == DECOMMISSIONING:
        raise problem(
            "conflict",
            f"Node {node} is being decommissioned.",
            f"`riverrun cluster recommission {node}` undoes that.",
        )
    effect = effect_of(state, node)
    words = ["cluster", "maintenance", "on" if body.on else "off", str(node)]
    leaders = effect.leaders if body.on else 0
    if body.on:
        others = [one for one in state.in_mode(MAINTENANCE) if one != node]
        reasons = _reasons(effect, node, others)
        if reasons:
            words.append("--force")
        if reasons and not body.force and not body.dry_run:
            raise problem("conflict", f"{'; '.join(reasons)}.", "Send force to do it nevertheless.")
        if not body.dry_run:
            await set_mode(request.pool, node, MAINTENANCE)
    elif not body.dry_run:
        await set_mode(request.pool, node, None)
        leaders = await return_leaders(request.pool, node)
    return MaintenanceResult(
        dry_run=body.dry_run,
        command=request.cluster.command(*words),
        node=node,
        mode=MAINTENANCE if body.on else ACTIVE,
        leaders=leaders,
        offline=list(effect.offline) if body.on else [],
        not_writable=list(effect.not_writable) if body.on else [],
    )


def _reasons(effect: MaintenanceEffect, node: int, others: list[int]) -> list[str]:
    """Why maintenance does harm."""
    reasons = []
    if others:
        reasons.append(f"Node {', '.join(map(str, others))} is in maintenance already")
    if effect.offline:
        reasons.append(
            f"{counted(len(effect.offline), 'partition')} would be unavailable while node {node} "
            f"is down: {named(effect.offline)}"
        )
    if effect.not_writable:
        reasons.append(
            f"{counted(len(effect.not_writable), 'partition')} would have fewer replicas in sync "
            f"than min.insync.replicas: {named(effect.not_writable)}"
        )
    return reasons


ENDPOINTS: Final = (
    ApiEndpoint("GET", "nodes", list_nodes, "All nodes", response=NodeList, tag=TAG),
    ApiEndpoint("GET", "nodes/{node}", get_node, "A node", response=NodeDetails, tag=TAG),
    ApiEndpoint(
        "GET",
        "nodes/{node}/configs",
        get_configs,
        "The settings of a node",
        response=ConfigList,
        tag=TAG,
    ),
    ApiEndpoint(
        "PATCH",
        "nodes/{node}/configs",
        change_configs,
        "Change settings of a node at run time",
        body=ConfigBody,
        response=ConfigChange,
        tag=TAG,
    ),
    ApiEndpoint(
        "POST",
        "nodes/{node}/maintenance",
        set_maintenance,
        "Begin or end the maintenance of a node",
        body=MaintenanceBody,
        response=MaintenanceResult,
        tag=TAG,
    ),
)
