"""The first start of a node: asks, answers, stores, until it belongs to a cluster.

While it has none, the node listens on its own addresses for other blank nodes alone. What follows
from what it hears is decided in ``decision.py``.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Final, TypeVar, assert_never

import structlog
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.server.dispatch.context import CONTROLLER, RequestContext
from riverrun.server.dispatch.router import Refused, Router
from riverrun.server.formation import founding
from riverrun.server.formation.asking import Asking
from riverrun.server.formation.decision import (
    Address,
    Decision,
    Found,
    Heard,
    Join,
    Proposal,
    Propose,
    Refuse,
    Situation,
    Wait,
    decide,
    known_controllers,
    objection,
    return_conflict,
    voters_of,
)
from riverrun.server.formation.formed import FormationError, FormationStopped, Formed
from riverrun.server.formation.messages import answer_of, proposal_of
from riverrun.server.formation.promise import Promise, read_promise, write_promise
from riverrun.server.network.listener import Listener
from riverrun.server.settings import Address as ListenerAddress
from riverrun.server.settings import NodeSettings
from riverrun.storage.directory import LogDirectory
from riverrun.wire.apis import ALL_APIS, PRIVATE_APIS, ApiKey
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from riverrun.wire.private.discover_node_request import DiscoverNodeRequest
from riverrun.wire.private.discover_node_response import DiscoverNodeResponse
from riverrun.wire.private.form_cluster_request import FormClusterRequest
from riverrun.wire.private.form_cluster_response import FormClusterResponse

REMIND_SECONDS: Final = 10.0
"""How often a node says that it still waits, and for what."""

T = TypeVar("T")
log = structlog.get_logger("riverrun.formation")


class Formation:
    """Used once, before the metadata log is opened."""

    def __init__(
        self,
        settings: NodeSettings,
        directory: LogDirectory,
        *,
        files: Files,
        clock: Clock,
        randomness: Randomness,
        stopping: asyncio.Event | None = None,
        sockets: Mapping[ListenerAddress, socket.socket] | None = None,
    ) -> None:
        """``form`` raises ``FormationStopped`` when ``stopping`` is set. ``sockets`` listen on some
        of the node's addresses already; they stay open.
        """
        self._settings = settings
        self._directory = directory
        self._files = files
        self._clock = clock
        self._randomness = randomness
        self._stopping = stopping or asyncio.Event()
        self._sockets = sockets or {}
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="formation")
        self._storing = asyncio.Lock()
        self._promise: Promise | None = None
        self._agreed = asyncio.Event()
        self._last_wait: tuple[str, float] = ("", 0.0)
        controller = settings.controller_advertised()
        self._me = Heard(
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            is_controller=settings.formation.is_controller,
            controller=(controller.host, controller.port) if controller else None,
        )
        self._seeds = [
            seed for seed in settings.formation.seeds() if seed not in self._own_addresses()
        ]
        self._asking = Asking(
            settings.node_id, directory.directory_id, settings.formation.answer_ms_max / 1000
        )

    async def form(self) -> Formed:
        """The cluster that this node belongs to, old or new; the directory says so, durably.

        Waits for the seeds as long as it takes. Raises ``FormationError`` when no waiting helps,
        ``DirectoryError`` and ``OSError`` when the directory or an address cannot be used.
        """
        try:
            return await self._form()
        finally:
            self._executor.shutdown(wait=False)

    async def _form(self) -> Formed:
        settings = self._settings.formation
        known = self._directory.cluster_id
        if known is not None and settings.cluster_id not in ("", known):
            raise FormationError(
                f"{self._directory.path} belongs to cluster {known}, and cluster.id is "
                f"{settings.cluster_id}: start the node with the directory of that cluster, or "
                f"with an empty one"
            )
        if known is not None and await self._in_thread(self._has_metadata):
            return await self._return_to(known)
        self._promise = await self._in_thread(self._read_promise)
        if self._promise is None and known is None:
            if not settings.seed_nodes:
                return await self._found_alone()
            if await self._in_thread(self._has_metadata):
                raise FormationError(
                    f"{self._directory.path} holds metadata of no known cluster: start the node "
                    f"once without seed.nodes, or with an empty data directory"
                )
        if self._promise is None and known is not None and self._seeds:
            # It was in a cluster, and what it acknowledged and voted for there is gone. Should it
            # be a voter, it must not speak for that directory again.
            renewed = await self._in_thread(self._directory.renew_id)
            self._me = replace(self._me, directory_id=renewed)
        if self._promise is not None and self._promise.is_agreed:
            return await self._found_as_agreed(self._promise.proposal)
        return await self._find_others(known or settings.cluster_id or None)

    # -- A cluster of one, and a cluster that we know ---------------------------------------------

    async def _found_alone(self) -> Formed:
        if not self._me.is_controller:
            raise FormationError(
                "a node that is no controller finds its cluster by seed.nodes: name some nodes"
            )
        endpoints = {} if self._me.controller is None else {CONTROLLER: self._me.controller}
        voter = replace(voters_of([replace(self._me, controller=("", 0))])[0], endpoints=endpoints)
        return await self._found(self._proposal((voter,)))

    async def _found_as_agreed(self, proposal: Proposal) -> Formed:
        """Everybody has promised before this start: there is nobody to ask."""
        situation = Situation(me=self._me, seeds={}, promise=proposal, is_agreed=True)
        formed = await self._act(decide(situation), situation)
        assert formed is not None, "an agreement that leads to nothing"
        return formed

    async def _return_to(self, cluster_id: str) -> Formed:
        if not self._seeds:
            return Formed(cluster_id=cluster_id)
        await self._in_thread(lambda: founding.join(self._files, self._directory, cluster_id))
        replies = await self._asking.seeds(self._seeds)
        me = replace(self._me, cluster_id=cluster_id)
        situation = Situation(me=me, seeds=replies, wanted_cluster=cluster_id)
        refusal = return_conflict(situation)
        if refusal is not None:
            raise FormationError(refusal)
        found = known_controllers(situation.others)
        # Silent seeds are named too: they show that this node is not meant to be alone.
        return Formed(cluster_id=cluster_id, bootstrap=found or tuple(self._seeds))

    # -- Others -----------------------------------------------------------------------------------

    async def _find_others(self, wanted: str | None) -> Formed:
        if not self._settings.formation.is_controller and not self._seeds:
            raise FormationError("a node that is no controller needs other nodes in seed.nodes")
        listener = self._listener()
        for address in self._settings.listening():
            passed = self._sockets.get(address)
            bound = passed.dup() if passed is not None else None
            await listener.start(address.name, address.host, address.port, bound)
        try:
            while True:
                situation = await self._look_around(wanted)
                formed = await self._act(decide(situation), situation)
                if formed is not None:
                    return formed
                await self._pause()
        finally:
            await listener.stop()

    async def _look_around(self, wanted: str | None) -> Situation:
        replies = await self._asking.seeds(self._seeds)
        namesakes = {
            address: None
            for found in replies.values()
            for reply in found
            if reply.heard is not None
            for address in reply.heard.namesakes
            if address not in self._own_addresses()
        }
        situation = Situation(
            me=self._heard(),
            seeds=replies,
            namesakes=await self._asking.addresses(list(namesakes)),
            expect=self._settings.formation.expect,
            wanted_cluster=wanted,
            promise=self._proposal_promised,
            is_agreed=self._promise is not None and self._promise.is_agreed,
        )
        self._me = replace(self._me, named=situation.named())
        return situation

    async def _act(self, decision: Decision, situation: Situation) -> Formed | None:
        if self._proposal_promised != situation.promise:
            return None  # we promised while we asked
        match decision:
            case Wait(why):
                self._remind(why)
                return None
            case Refuse(why):
                raise FormationError(why)
            case Join(cluster_id, bootstrap):
                async with self._storing:
                    if self._promise is not None:
                        return None
                    await self._in_thread(
                        lambda: founding.join(self._files, self._directory, cluster_id)
                    )
                log.info("joins a cluster", cluster=cluster_id)
                return Formed(cluster_id=cluster_id, bootstrap=bootstrap)
            case Found(proposal):
                return await self._found(proposal)
            case Propose(proposal, members):
                return await self._propose(proposal or self._proposal(voters_of(members)))
            case _:
                assert_never(decision)

    def _proposal(self, voters: tuple[Any, ...]) -> Proposal:
        drawn = base64.urlsafe_b64encode(self._randomness.uuid().bytes).decode().rstrip("=")
        return Proposal(
            cluster_id=self._settings.formation.cluster_id or drawn,
            proposed_ms=self._clock.now_ms(),
            voters=voters,
        )

    async def _propose(self, proposal: Proposal) -> Formed | None:
        async with self._storing:
            if self._promise is None:
                await self._store(Promise(proposal=proposal))
            elif self._promise.proposal != proposal:
                return None
        others = [voter for voter in proposal.voters if voter.key.id != self._me.node_id]
        places = [voter.endpoints[CONTROLLER] for voter in others]
        answers = await asyncio.gather(
            *(self._asking.form(place, proposal, is_agreed=False) for place in places)
        )
        for voter, why in zip(others, answers, strict=True):
            if why is not None:
                self._remind(f"node {voter.id} has not promised: {why}")
                return None
        formed = await self._found(proposal)
        # Whoever misses this learns of it from any seed that has founded.
        await asyncio.gather(
            *(self._asking.form(place, proposal, is_agreed=True) for place in places)
        )
        return formed

    async def _found(self, proposal: Proposal) -> Formed:
        await self._in_thread(lambda: founding.found(self._files, self._directory, proposal))
        ids = ", ".join(str(voter.id) for voter in proposal.voters)
        log.info("founds a cluster", cluster=proposal.cluster_id, voters=ids)
        bootstrap = tuple(v.endpoints[CONTROLLER] for v in proposal.voters if v.endpoints)
        return Formed(cluster_id=proposal.cluster_id, voters=proposal.voters, bootstrap=bootstrap)

    async def _pause(self) -> None:
        """Until it is time to ask again, all have promised, or the node is to stop."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._agreed, self._stopping)]
        try:
            await asyncio.wait(
                waits,
                timeout=self._settings.formation.retry_ms / 1000,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
        if self._stopping.is_set():
            raise FormationStopped

    def _remind(self, why: str) -> None:
        said, at = self._last_wait
        now = self._clock.monotonic()
        if why != said or now - at >= REMIND_SECONDS:
            self._last_wait = (why, now)
            log.info("waits for a cluster", reason=why)

    # -- What others ask --------------------------------------------------------------------------

    def _listener(self) -> Listener:
        metrics = Metrics()
        key = ApiKey.API_VERSIONS
        router = Router(
            self,
            metrics=metrics,
            clock=self._clock,
            apis={key: ALL_APIS[key], **PRIVATE_APIS},
            modules={
                key: SimpleNamespace(handle=_api_versions),
                ApiKey.DISCOVER_NODE: SimpleNamespace(handle=_discover),
                ApiKey.FORM_CLUSTER: SimpleNamespace(handle=_form_cluster),
            },
        )
        return Listener(router, self._settings.network, clock=self._clock, metrics=metrics)

    def _heard(self) -> Heard:
        """What we say of ourselves."""
        promised = self._promise.proposal.cluster_id if self._promise is not None else None
        return replace(self._me, promised=promised, cluster_id=self._directory.cluster_id)

    def answer(self) -> DiscoverNodeResponse:
        return answer_of(self._heard())

    async def form_cluster(self, request: FormClusterRequest) -> FormClusterResponse:
        """Promise, durably, or hear that everybody has."""
        proposal = proposal_of(request)
        async with self._storing:
            promise = self._promise
            known = self._proposal_promised
            wanted = self._directory.cluster_id or self._settings.formation.cluster_id or None
            why = objection(self._heard(), proposal, known, wanted)
            if why is None and request.is_agreed and known is None:
                why = f"node {self._me.node_id} has promised nothing"
            if why is not None:
                return FormClusterResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=why)
            if promise is None:
                await self._store(Promise(proposal=proposal))
            elif request.is_agreed and not promise.is_agreed:
                self._promise = replace(promise, is_agreed=True)
                self._agreed.set()
        return FormClusterResponse(error_code=ErrorCode.NONE)

    # -- The directory ----------------------------------------------------------------------------

    @property
    def _proposal_promised(self) -> Proposal | None:
        return self._promise.proposal if self._promise is not None else None

    async def _store(self, promise: Promise) -> None:
        await self._in_thread(lambda: write_promise(self._files, self._directory.path, promise))
        self._promise = promise

    def _read_promise(self) -> Promise | None:
        return read_promise(self._files, self._directory.path)

    def _has_metadata(self) -> bool:
        """Whether the metadata log names voters, or has begun."""
        folder = self._directory.make_metadata()
        for name in self._files.list_directory(folder):
            if name.endswith(".checkpoint"):
                return True
            if name.endswith(".log") and self._files.size(os.path.join(folder, name)) > 0:
                return True
        return False

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def _own_addresses(self) -> list[Address]:
        settings = self._settings
        told = [*settings.listening(), *settings.advertised()]
        controller = settings.controller_advertised()
        if controller is not None:
            told.append(controller)
        return [(address.host, address.port) for address in told]


def _api_versions(
    _: Formation, context: RequestContext, __: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Nothing yet: a client that comes too early goes away, and comes again."""
    api = ALL_APIS[ApiKey.API_VERSIONS]
    only = ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
    return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=(only,))


def _discover(
    formation: Formation, _: RequestContext, __: DiscoverNodeRequest
) -> DiscoverNodeResponse:
    return formation.answer()


async def _form_cluster(
    formation: Formation, context: RequestContext, request: FormClusterRequest
) -> FormClusterResponse:
    if context.listener != CONTROLLER:
        raise Refused("unknown_api", "a cluster is formed on the controllers' listener alone")
    return await formation.form_cluster(request)
