"""Makes plans while this node is the active controller: suggests them, or starts them.

The triggers are in ``cluster/balancing/needs.py``; the controller runs the plans. Here is the rest:
a loop, the sizes and rates of partitions, and the planner in a process of its own. Nothing here
holds the event loop: a large cluster is read in steps.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
from msgspec.structs import replace

from riverrun.cluster.active_controller import ActiveController, MetadataWriter
from riverrun.cluster.balance import PartitionLoads, add_partitions, layout_builder
from riverrun.cluster.balancing.absences import absence_records
from riverrun.cluster.balancing.back_off import is_backing_off
from riverrun.cluster.balancing.futility import FutileNeeds
from riverrun.cluster.balancing.needs import NeedWatch, PlanNeed, RackCheck, covered_causes
from riverrun.cluster.balancing.plans import plans_without_moves, running_headers
from riverrun.cluster.balancing.settings import BalanceMode, BalanceSettings
from riverrun.cluster.balancing.submission import submit_plan, submit_repair
from riverrun.cluster.balancing.suggestion import suggestion_records
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.metadata.image import Image
from riverrun.model.errors import KafkaError
from riverrun.placement.planner.layout import ClusterLayout
from riverrun.placement.planner.plan import Goal, Plan, Purpose
from riverrun.placement.planner.process import PlanTask, planner_command, run_task
from riverrun.placement.planner.stored_plan import (
    MOVES_MAX,
    PlanHeader,
    Suggestion,
    submitted_texts,
)
from riverrun.ports.aio import Yielder
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files, OsFiles

PARTITIONS_PER_STEP: Final = 500
PLANNING_SECONDS_MAX: Final = 600.0
REPAIR_PAUSE_MS: Final = 60_000
REQUESTER: Final = "controller"

log = structlog.get_logger("riverrun.controller")

Planner = Callable[[PlanTask], Awaitable[Plan]]
Loads = Callable[[], Awaitable[PartitionLoads]]


class PlannerFailed(Exception):
    """The planner process ended without a plan."""


def planner_for(files: Files) -> Planner:
    """A process for the real world. The simulation plans inline: its time does not pass."""
    return plan_in_process if isinstance(files, OsFiles) else _plan_inline


async def _plan_inline(task: PlanTask) -> Plan:
    return run_task(task)


async def plan_in_process(task: PlanTask) -> Plan:
    """Raises ``PlannerFailed``, OSError or TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *planner_command(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # Do not search the current directory for modules.
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    try:
        data = await asyncio.to_thread(pickle.dumps, task)
        async with asyncio.timeout(PLANNING_SECONDS_MAX):
            output, _ = await process.communicate(data)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise PlannerFailed(f"the planner ended with status {process.returncode}")
    plan: Plan = await asyncio.to_thread(pickle.loads, output)
    return plan


def _pause_ms(need: PlanNeed, settings: BalanceSettings) -> int:
    """The pause between a plan and the next one for the same need."""
    return REPAIR_PAUSE_MS if need.purpose is Purpose.REPAIR else settings.cool_down_ms


class AutoBalance:
    def __init__(
        self,
        controller: ActiveController,
        metadata: MetadataWriter,
        configs: Configs,
        settings: BalanceSettings,
        clock: Clock,
        *,
        loads: Loads,
        planner: Planner,
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._configs = configs
        self._static = settings
        self._clock = clock
        self._loads = loads
        self._planner = planner
        self._watch = NeedWatch()
        self._futile = FutileNeeds(controller.placement)
        self._planned: tuple[PlanNeed, float] | None = None
        """The last need that was planned for, and when."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._static.check_interval_ms / 1000)
            if not self._metadata.is_active:
                self._watch, self._planned = NeedWatch(), None
                self._futile = FutileNeeds(self._controller.placement)
                continue
            try:
                await self.check()
            except (KafkaError, OSError, PlannerFailed) as error:
                # Another controller, a full disk or a lack of memory: the next check tries again.
                log.warning("no plan was made", error=str(error) or type(error).__name__)

    async def check(self) -> None:
        """One check: plan if it is needed, or withdraw a suggestion that is not."""
        image = self._metadata.newest
        settings = self._configs.effective(image, self._static)
        mode = BalanceMode(settings.mode)
        needs: tuple[PlanNeed, ...] = ()
        running = running_headers(image)
        await self._note_absences()
        if mode is not BalanceMode.OFF:
            needs = self._watch.needs(
                self._configs,
                image,
                self._controller.placement,
                settings,
                now=self._clock.monotonic(),
                now_ms=self._clock.now_ms(),
                running=running,
                broken_racks=await self._broken_racks(image),
            )
        now = self._clock.monotonic()
        need = next((one for one in needs if not self._futile.contains(one, image, now)), None)
        if need is None:
            if not needs and not running:
                self._planned = None
            await self._suggest(None)
        elif not need.reasons:
            await self._suggest(Suggestion(reasons=(), held_back=need.held_back))
        elif self._is_due(need, settings) and not self._is_backing_off(need, image, settings):
            self._planned = (need, self._clock.monotonic())
            plan = await self._plan(image, need)
            if need.is_beside_plans:
                moves = tuple(move for move in plan.moves if move.goal is Goal.REPAIR)
                plan = replace(plan, moves=moves)
            self._futile.note(need, image, self._clock.monotonic(), is_empty=not plan.moves)
            await self._propose(plan, need, settings, mode)

    def _is_due(self, need: PlanNeed, settings: BalanceSettings) -> bool:
        """The same need is not planned for again at once: the plan may be refused or cancelled."""
        if self._planned is None or self._planned[0].causes != need.causes:
            return True
        passed = self._clock.monotonic() - max(self._planned[1], self._watch.last_end)
        return passed >= _pause_ms(need, settings) / 1000

    def _is_backing_off(self, need: PlanNeed, image: Image, settings: BalanceSettings) -> bool:
        if BalanceMode(settings.mode) is not BalanceMode.AUTO:
            return False
        plans = plans_without_moves(image)
        return is_backing_off(plans, need, self._clock.now_ms(), _pause_ms(need, settings))

    async def _propose(
        self, plan: Plan, need: PlanNeed, settings: BalanceSettings, mode: BalanceMode
    ) -> None:
        if not plan.moves:
            await self._suggest(None)
            return
        log.info("a plan would help", reasons=need.reasons, moves=len(plan.moves), mode=mode.value)
        if mode is BalanceMode.AUTO:
            await self._controller.submit(partial(self._start, plan, need, settings))
            return
        suggestion = Suggestion(
            reasons=need.reasons,
            moves=len(plan.moves),
            bytes_to_copy=int(plan.bytes_to_copy),
            command=need.command,
            held_back=need.held_back,
        )
        await self._suggest(suggestion)

    def _start(
        self, plan: Plan, need: PlanNeed, settings: BalanceSettings, image: Image
    ) -> Decision[None]:
        """The cluster may have changed while the plan was made. Moves that it overtook are dropped
        when the plan runs."""
        running = running_headers(image)
        if running and not need.is_beside_plans:
            return Decision(response=None)
        covered = covered_causes(running)
        if any(cause in covered for cause in need.causes):
            return Decision(response=None)
        now_ms = self._clock.now_ms()
        header = PlanHeader(
            reason="; ".join(need.reasons),
            requester=REQUESTER,
            submitted_ms=now_ms,
            throttle=settings.throttle or None,
            purpose=need.purpose.value,
            causes=need.causes,
        )
        plan_id = f"{plan.purpose.value}-{now_ms}"
        if need.is_beside_plans:
            records = submit_repair(image, plan_id, header, plan.moves)
        else:
            records = submit_plan(image, plan_id, submitted_texts(header, plan.moves))
        return Decision(records=(*records, *suggestion_records(image, None)), response=None)

    async def _note_absences(self) -> None:
        now_ms = self._clock.now_ms()
        if absence_records(self._metadata.newest, now_ms):
            await self._controller.submit(
                lambda image: Decision(records=tuple(absence_records(image, now_ms)), response=None)
            )

    async def _suggest(self, suggestion: Suggestion | None) -> None:
        if suggestion_records(self._metadata.newest, suggestion):
            await self._controller.submit(
                lambda image: Decision(
                    records=tuple(suggestion_records(image, suggestion)), response=None
                )
            )

    async def _broken_racks(self, image: Image) -> int:
        check = RackCheck(image)
        if not check.is_needed:
            return 0
        yielder = Yielder(self._clock)
        for topic in image.topics_by_name.values():
            at: int | None = 0
            while at is not None:
                at = check.add(topic, at)
                await yielder.step()
        return check.broken

    async def _plan(self, image: Image, need: PlanNeed) -> Plan:
        layout = await self._layout(image, need)
        return await self._planner(
            PlanTask(layout=layout, purpose=need.purpose, moves_max=MOVES_MAX)
        )

    async def _layout(self, image: Image, need: PlanNeed) -> ClusterLayout:
        loads = await self._loads()
        yielder = Yielder(self._clock)
        state = self._controller.placement
        builder = layout_builder(self._configs, image, state, gone=need.gone)
        for topic in image.topics_by_name.values():
            for start in range(0, len(topic.partitions), PARTITIONS_PER_STEP):
                add_partitions(builder, image, topic, loads, start=start, count=PARTITIONS_PER_STEP)
                await yielder.step()
        return builder.build()
