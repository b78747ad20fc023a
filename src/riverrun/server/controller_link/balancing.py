"""Background work of the active controller: asks brokers for their load, plans balancing, and
unregisters decommissioned brokers that died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.ports.aio import OwnedTasks
from riverrun.server.controller_link.auto_balance import AutoBalance, Planner
from riverrun.server.controller_link.disk_poll import DiskPoll
from riverrun.server.controller_link.retirement import Retirement

if TYPE_CHECKING:
    from riverrun.server.services import NodeServices


def start_balancing(services: NodeServices, tasks: OwnedTasks, planner: Planner) -> None:
    """All idle until this node is the active controller."""
    metadata = services.metadata
    disk_poll = DiskPoll(
        services.controller.placement,
        lambda: metadata.newest,
        lambda: metadata.is_active,
        security=services.security,
        clock=services.clock,
    )
    tasks.start(disk_poll.run(), name="disk poll")
    auto_balance = AutoBalance(
        services.controller,
        metadata,
        services.configs,
        services.settings.balance,
        services.clock,
        loads=disk_poll.partition_loads,
        planner=planner,
    )
    tasks.start(auto_balance.run(), name="auto balance")
    retirement = Retirement(
        services.controller,
        metadata,
        services.configs,
        services.settings.balance,
        services.clock,
        voters=lambda: [voter.id for voter in metadata.voters],
    )
    tasks.start(retirement.run(), name="retirement")
