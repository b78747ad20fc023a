"""Plans in the cluster: submit one, read all, watch one until it ends, cancel one.

The controller runs a plan. A command only submits it and watches, so it may be interrupted.
"""

from __future__ import annotations

import asyncio
import getpass
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from riverrun.admin.requests import check
from riverrun.client.pool import ClusterUnreachable, ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.stored_plan import (
    ALL_PLANS,
    HEADER,
    MODES,
    PROGRESS,
    RESULT,
    ROLLBACKS,
    SUGGESTION,
    WAITING,
    PlanEnd,
    PlanHeader,
    PlanResult,
    StoredPlan,
    StoredRollback,
    Suggestion,
    decode_moves,
    decode_plan,
    decode_rollbacks,
    decode_suggestion,
    submitted_texts,
)
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)

PLAN_RESOURCE = 0
SET, DELETE = 0, 1
WATCHED = (HEADER, PROGRESS, RESULT)
LOOK_EVERY_SECONDS = 0.5
OUTAGE_SECONDS_MAX = 60.0
"""How long the cluster may be unreachable before the command gives up. The plan goes on."""
UNSEEN_SECONDS_MAX = 10.0
"""A node learns of a plan slightly after the controller has stored it."""
SUBMIT_SECONDS_MAX = 30.0

Report = Callable[[StoredPlan], None]


def user_and_host() -> str:
    """Who asks, as far as this machine knows."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


async def supports_plans(pool: ConnectionPool) -> bool:
    """Whether the cluster stores plans: Apache Kafka does not know their type of resource."""
    wanted = DescribeConfigsResource(
        resource_type=PLAN_RESOURCE, resource_name=ALL_PLANS, configuration_keys=()
    )
    answer: DescribeConfigsResponse = await pool.request(
        ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=(wanted,))
    )
    code = answer.results[0].error_code
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        check(code, answer.results[0].error_message, "plans")
    return code is ErrorCode.NONE


async def start_plan(
    pool: ConnectionPool,
    command: str,
    moves: Sequence[PlannedMove],
    *,
    throttle: int | None,
    requester: str,
) -> str:
    """Let the controller run a plan, and return its id. ``command`` has the words of the command
    that does the same, by which the cluster names the plan."""
    plan_id = f"{command.split()[1]}-{secrets.token_hex(4)}"
    header = PlanHeader(
        reason=command,
        requester=requester,
        submitted_ms=int(time.time() * 1000),
        throttle=throttle,
    )
    await submit(pool, plan_id, header, moves)
    return plan_id


async def submit(
    pool: ConnectionPool, plan_id: str, header: PlanHeader, moves: Sequence[PlannedMove]
) -> None:
    texts = submitted_texts(header, moves)
    changes = tuple(
        AlterableConfig(name=name, config_operation=SET, value=text) for name, text in texts.items()
    )
    code, message = await _alter(pool, plan_id, changes)
    # A repeated request finds the plan that the first one has stored.
    if code is not ErrorCode.DUPLICATE_RESOURCE:
        check(code, message, "plan")


async def cancel_plan(pool: ConnectionPool, plan_id: str) -> None:
    """Cancel a plan that runs; one that has ended meanwhile is left alone."""
    changes = (AlterableConfig(name=HEADER, config_operation=DELETE, value=None),)
    code, message = await _alter(pool, plan_id, changes)
    if code is not ErrorCode.RESOURCE_NOT_FOUND:
        check(code, message, f"plan {plan_id}")


async def cancel_waiting(pool: ConnectionPool, plan_id: str, numbers: Sequence[int]) -> None:
    """Drop moves of a plan that have not begun; those that have are left alone."""
    changes = tuple(
        AlterableConfig(name=f"{WAITING}{number}", config_operation=DELETE, value=None)
        for number in numbers
    )
    code, message = await _alter(pool, plan_id, changes)
    if code is not ErrorCode.RESOURCE_NOT_FOUND:
        check(code, message, f"plan {plan_id}")


async def _alter(
    pool: ConnectionPool, plan_id: str, changes: tuple[AlterableConfig, ...]
) -> tuple[ErrorCode, str | None]:
    resource = AlterConfigsResource(
        resource_type=PLAN_RESOURCE, resource_name=plan_id, configs=changes
    )
    answer: IncrementalAlterConfigsResponse = await pool.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False),
        timeout_s=SUBMIT_SECONDS_MAX,
    )
    row = answer.responses[0]
    return row.error_code, row.error_message


async def ask_plans(pool: ConnectionPool) -> list[StoredPlan]:
    """The plans that run, the oldest first. Empty if the cluster is not one of riverrun."""
    return [plan for plan in await ask_all_plans(pool) if plan.is_running]


async def ask_all_plans(pool: ConnectionPool) -> list[StoredPlan]:
    """The plans that run, and those that ended last."""
    (found,) = (await _describe(pool, [(ALL_PLANS, None)])).values()
    if not found:
        return []
    texts = await _describe(pool, [(name, WATCHED) for name in found])
    plans = [decode_plan(name, each) for name, each in texts.items() if HEADER in each]
    return sorted(plans, key=lambda plan: (plan.header.submitted_ms, plan.id))


async def ask_whole_plans(pool: ConnectionPool) -> list[StoredPlan]:
    """The plans that run, with their moves."""
    running = [plan.id for plan in await ask_plans(pool)]
    texts = await _describe(pool, [(plan_id, None) for plan_id in running]) if running else {}
    return [decode_plan(plan_id, each) for plan_id, each in texts.items() if HEADER in each]


async def ask_plan_moves(
    pool: ConnectionPool, plan_ids: Sequence[str]
) -> dict[str, tuple[PlannedMove, ...]]:
    """The moves of plans that run, by id. They do not change."""
    if not plan_ids:
        return {}
    texts = await _describe(pool, [(plan_id, None) for plan_id in plan_ids])
    return {plan_id: decode_moves(each) for plan_id, each in texts.items()}


async def ask_rollbacks(pool: ConnectionPool) -> dict[str, StoredRollback]:
    """The last moves that were rolled back, by partition (``events-0``), the newest first."""
    (texts,) = (await _describe(pool, [(ROLLBACKS, None)])).values()
    found = decode_rollbacks(texts)
    return dict(sorted(found.items(), key=lambda row: row[1].at_ms, reverse=True))


async def ask_modes(pool: ConnectionPool) -> dict[int, str]:
    """The modes of brokers that are not active, as any node knows them: also of brokers that are
    down and cannot be asked."""
    (texts,) = (await _describe(pool, [(MODES, None)])).values()
    return {int(node): mode for node, mode in texts.items()}


async def ask_suggestion(pool: ConnectionPool) -> Suggestion | None:
    """What the controller suggests; None if the cluster is even, or not one of riverrun."""
    (texts,) = (await _describe(pool, [(SUGGESTION, None)])).values()
    return decode_suggestion(texts)


async def watch(pool: ConnectionPool, plan_id: str, report: Report) -> PlanResult:
    """Wait for the end of a plan. Its progress is stored with it."""
    answered_at, was_seen = time.monotonic(), False
    while True:
        try:
            (texts,) = (await _describe(pool, [(plan_id, WATCHED)])).values()
            if HEADER in texts:
                answered_at, was_seen = time.monotonic(), True
                plan = decode_plan(plan_id, texts)
                if plan.result is not None:
                    return plan.result
                report(plan)
            elif was_seen or time.monotonic() - answered_at > UNSEEN_SECONDS_MAX:
                # It has ended, and later plans have replaced its result.
                return PlanResult(end=PlanEnd.DONE, ended_ms=0, done=0, dropped=0)
        except (OSError, KafkaError) as error:
            # A controller may fail over meanwhile, and nodes may restart.
            if time.monotonic() - answered_at > OUTAGE_SECONDS_MAX:
                raise
            if isinstance(error, ClusterUnreachable):
                await pool.switch_node()
        await asyncio.sleep(LOOK_EVERY_SECONDS)


async def _describe(
    pool: ConnectionPool, wanted: Sequence[tuple[str, tuple[str, ...] | None]]
) -> dict[str, Mapping[str, str]]:
    """The texts of plans by id; ALL_PLANS stands for the headers of all."""
    request = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=PLAN_RESOURCE, resource_name=name, configuration_keys=keys
            )
            for name, keys in wanted
        )
    )
    answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, request)
    return {
        result.resource_name: {
            row.name: row.value for row in result.configs if row.value is not None
        }
        for result in answer.results
    }
