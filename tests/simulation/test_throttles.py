"""The rates of replication throttles in a running cluster."""

from functools import partial

import pytest

from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.model.errors import ErrorCode
from riverrun.model.settings import LONG_MAX
from riverrun.replication.throttle import Throttle
from riverrun.simulation.cluster import SimulatedCluster, node_settings
from riverrun.simulation.isolation import captured_logs
from riverrun.simulation.world import Environment, World
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

BROKER, SET, DELETE = 4, 0, 1
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
SECONDS_MAX = 20.0


async def _alter(environment: Environment, cluster: SimulatedCluster, rate: int | None) -> None:
    configs = tuple(
        AlterableConfig(
            name=name,
            config_operation=DELETE if rate is None else SET,
            value=None if rate is None else str(rate),
        )
        for name in RATES
    )
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=configs)
    async with ConnectionPool(
        parse_bootstrap(cluster.bootstrap), randomness=environment.randomness
    ) as pool:
        message = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        response = await pool.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, message)
        assert response.responses[0].error_code is ErrorCode.NONE


@pytest.mark.timeout(120)
def test_rates_apply_at_once_and_after_a_restart_and_are_removed() -> None:
    with World(1) as world, captured_logs(world):
        settings = [node_settings(1, nodes=1, controllers=1, texts={})]
        cluster = SimulatedCluster(world, settings)

        def rates() -> list[int]:
            node = cluster.brokers.get("node-1")
            role = None if node is None else node._broker
            if role is None or "node-1" not in cluster.ready:
                return []
            both: list[Throttle] = [role.services.leader_throttle, role._fetchers.throttle]
            return [throttle._rate for throttle in both]

        def alter(rate: int | None) -> None:
            world.host("admin")
            world.start("admin", partial(_alter, cluster=cluster, rate=rate))

        cluster.supervisor.begin()
        assert world.run_until(lambda: rates() == [LONG_MAX] * 2, SECONDS_MAX), world.story[-20:]
        alter(5000)
        assert world.run_until(lambda: rates() == [5000] * 2, SECONDS_MAX), world.story[-20:]
        world.kill("node-1")
        assert world.run_until(lambda: not rates(), SECONDS_MAX)
        assert world.run_until(lambda: rates() == [5000] * 2, SECONDS_MAX), world.story[-20:]
        world.run(1.0)
        alter(None)
        assert world.run_until(lambda: rates() == [LONG_MAX] * 2, SECONDS_MAX), world.story[-20:]
