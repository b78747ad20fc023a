"""The first start of a node: joins a cluster or forms one with its seeds.

While it has no cluster, the node listens on its own addresses and serves only the formation
requests of other blank nodes. ``decision.py`` decides each step.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Final, TypeVar, assert_never

import structlog
from msgspec.structs import replace

from riverrun.client.security import no_security
from riverrun.metadata.image import Image
from riverrun.metadata.snapshot import BOOTSTRAP, snapshot_batches
from riverrun.model.errors import ErrorCode
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files, write_atomically
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.raft.types import Voter
from riverrun.server.dispatch.context import CONTROLLER, RequestContext
from riverrun.server.dispatch.router import Refused, Router
from riverrun.server.formation.decision import (
    Address,
    ClusterProposal,
    FormationError,
    FormationState,
    FormationStep,
    FormationStopped,
    FormCluster,
    Formed,
    JoinCluster,
    NodeReport,
    ProposeCluster,
    Refuse,
    Wait,
    decide,
    known_controllers,
    rejection_reason,
    rejoin_conflict,
    voters_from,
)
from riverrun.server.formation.messages import decode_proposal, encode_report
from riverrun.server.formation.promise import PROMISE, Promise, read_promise, write_promise
from riverrun.server.formation.seed_client import SeedClient
from riverrun.server.network.listener import Listener
from riverrun.server.security.access import AccessControl
from riverrun.server.security.node_security import NodeSecurity
from riverrun.server.settings import Address as ListenerAddress
from riverrun.server.settings import NodeSettings
from riverrun.storage.directory import LogDirectory
from riverrun.wire.apis import ALL_APIS, KNOWN_APIS, ApiKey
from riverrun.wire.messages.api_versions_request import ApiVersionsRequest
from riverrun.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from riverrun.wire.private.discover_node_request import DiscoverNodeRequest
from riverrun.wire.private.discover_node_response import DiscoverNodeResponse
from riverrun.wire.private.form_cluster_request import FormClusterRequest
from riverrun.wire.private.form_cluster_response import FormClusterResponse

LOG_SECONDS: Final = 10.0
"""Between log lines with the same reason for waiting."""

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
        security: NodeSecurity | None = None,
        stopping: asyncio.Event | None = None,
        sockets: Mapping[ListenerAddress, socket.socket] | None = None,
    ) -> None:
        """``form`` raises ``FormationStopped`` when ``stopping`` is set. ``sockets`` already listen
        on some of the node's addresses; they stay open.
        """
        self._settings = settings
        self._directory = directory
        self._files = files
        self._clock = clock
        self._randomness = randomness
        self._guards = {} if security is None else security.guards
        self._stopping = stopping or asyncio.Event()
        self._sockets = sockets or {}
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="formation")
        self._storing = asyncio.Lock()
        self._promise: Promise | None = None
        self._agreed = asyncio.Event()
        self._last_wait: tuple[str, float] = ("", 0.0)
        controller = settings.controller_advertised()
        self._me = NodeReport(
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            is_controller=settings.formation.is_controller,
            controller=(controller.host, controller.port) if controller else None,
        )
        self._seeds = [
            seed for seed in settings.formation.seeds() if seed not in self._own_addresses()
        ]
        self._client = SeedClient(
            settings.node_id,
            directory.directory_id,
            settings.formation.response_ms_max / 1000,
            no_security if security is None else security.to_controllers,
        )

    async def form(self) -> Formed:
        """The cluster that this node belongs to, existing or new. Its id is durable on return.

        Waits for the seeds without a limit. Raises ``FormationError`` if waiting cannot help,
        ``DirectoryError`` or ``OSError`` if the directory or an address cannot be used.
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
            return await self._rejoin(known)
        self._promise = await self._in_thread(self._read_promise)
        if self._promise is None and known is None:
            if not settings.seed_nodes:
                return await self._form_alone()
            if await self._in_thread(self._has_metadata):
                raise FormationError(
                    f"{self._directory.path} holds metadata of an unknown cluster: start the node "
                    f"once without seed.nodes, or with an empty data directory"
                )
        if self._promise is None and known is not None and self._seeds:
            # The node belonged to a cluster and lost what it acknowledged and voted there. If it
            # was a voter, it must not vote with the same directory id again.
            renewed = await self._in_thread(self._directory.renew_id)
            self._me = replace(self._me, directory_id=renewed)
        if self._promise is not None and self._promise.is_agreed:
            return await self._form_as_agreed(self._promise.proposal)
        return await self._find_others(known or settings.cluster_id or None)

    # A cluster of one node, and a cluster that the node already belongs to

    async def _form_alone(self) -> Formed:
        if not self._me.is_controller:
            raise FormationError(
                "a node that is not a controller needs seed.nodes to find its cluster"
            )
        endpoints = {} if self._me.controller is None else {CONTROLLER: self._me.controller}
        voter = Voter(id=self._me.node_id, directory_id=self._me.directory_id, endpoints=endpoints)
        return await self._form_cluster(self._new_proposal((voter,)))

    async def _form_as_agreed(self, proposal: ClusterProposal) -> Formed:
        """All voters promised before this start, so no request is needed."""
        state = FormationState(me=self._me, seeds={}, promise=proposal, is_agreed=True)
        formed = await self._act(decide(state), state)
        assert formed is not None, "an agreed proposal did not lead to a cluster"
        return formed

    async def _rejoin(self, cluster_id: str) -> Formed:
        if not self._seeds:
            return Formed(cluster_id=cluster_id)
        await self._in_thread(lambda: self._write_cluster_id(cluster_id))
        results = await self._client.seeds(self._seeds)
        me = replace(self._me, cluster_id=cluster_id)
        state = FormationState(me=me, seeds=results, wanted_cluster=cluster_id)
        conflict = rejoin_conflict(state)
        if conflict is not None:
            raise FormationError(conflict)
        controllers = known_controllers(state.others)
        # Seeds that did not respond are used too: with them the node does not assume to be alone.
        return Formed(cluster_id=cluster_id, bootstrap=controllers or tuple(self._seeds))

    # A cluster of several nodes

    async def _find_others(self, wanted: str | None) -> Formed:
        if not self._settings.formation.is_controller and not self._seeds:
            raise FormationError("a node that is not a controller needs other nodes in seed.nodes")
        listener = self._build_listener()
        for address in self._settings.listening():
            passed = self._sockets.get(address)
            bound = passed.dup() if passed is not None else None
            await listener.start(address.name, address.host, address.port, bound)
        try:
            while True:
                state = await self._ask_seeds(wanted)
                formed = await self._act(decide(state), state)
                if formed is not None:
                    return formed
                await self._pause()
        finally:
            await listener.stop()

    async def _ask_seeds(self, wanted: str | None) -> FormationState:
        results = await self._client.seeds(self._seeds)
        namesakes = {
            address: None
            for found in results.values()
            for result in found
            if result.report is not None
            for address in result.report.namesakes
            if address not in self._own_addresses()
        }
        state = FormationState(
            me=self._report(),
            seeds=results,
            namesakes=await self._client.addresses(list(namesakes)),
            expect=self._settings.formation.expect,
            wanted_cluster=wanted,
            promise=self._promised_proposal,
            is_agreed=self._promise is not None and self._promise.is_agreed,
        )
        self._me = replace(self._me, named=state.named())
        return state

    async def _act(self, decision: FormationStep, state: FormationState) -> Formed | None:
        if self._promised_proposal != state.promise:
            return None  # a proposal was promised during the requests
        match decision:
            case Wait(reason):
                self._log_wait(reason)
                return None
            case Refuse(error):
                raise FormationError(error)
            case JoinCluster(cluster_id, bootstrap):
                async with self._storing:
                    if self._promise is not None:
                        return None
                    await self._in_thread(lambda: self._write_cluster_id(cluster_id))
                log.info("joined a cluster", cluster=cluster_id)
                return Formed(cluster_id=cluster_id, bootstrap=bootstrap)
            case FormCluster(proposal):
                return await self._form_cluster(proposal)
            case ProposeCluster(proposal, members):
                return await self._propose(proposal or self._new_proposal(voters_from(members)))
            case _:
                assert_never(decision)

    def _new_proposal(self, voters: tuple[Voter, ...]) -> ClusterProposal:
        drawn = base64.urlsafe_b64encode(self._randomness.uuid().bytes).decode().rstrip("=")
        return ClusterProposal(
            cluster_id=self._settings.formation.cluster_id or drawn,
            proposed_ms=self._clock.now_ms(),
            voters=voters,
        )

    async def _propose(self, proposal: ClusterProposal) -> Formed | None:
        async with self._storing:
            if self._promise is None:
                await self._store(Promise(proposal=proposal))
            elif self._promise.proposal != proposal:
                return None
        others = [voter for voter in proposal.voters if voter.key.id != self._me.node_id]
        addresses = [voter.endpoints[CONTROLLER] for voter in others]
        errors = await asyncio.gather(
            *(self._client.form(address, proposal, is_agreed=False) for address in addresses)
        )
        for voter, error in zip(others, errors, strict=True):
            if error is not None:
                self._log_wait(f"node {voter.id} has not promised: {error}")
                return None
        formed = await self._form_cluster(proposal)
        # A voter that misses this notification asks any seed that belongs to the cluster.
        await asyncio.gather(
            *(self._client.form(address, proposal, is_agreed=True) for address in addresses)
        )
        return formed

    async def _form_cluster(self, proposal: ClusterProposal) -> Formed:
        await self._in_thread(lambda: self._write_first_snapshot(proposal))
        ids = ", ".join(str(voter.id) for voter in proposal.voters)
        log.info("formed a cluster", cluster=proposal.cluster_id, voters=ids)
        bootstrap = tuple(v.endpoints[CONTROLLER] for v in proposal.voters if v.endpoints)
        return Formed(cluster_id=proposal.cluster_id, voters=proposal.voters, bootstrap=bootstrap)

    async def _pause(self) -> None:
        """Return when the seeds are due to be asked again or all voters have promised."""
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

    def _log_wait(self, reason: str) -> None:
        last_reason, logged_at = self._last_wait
        now = self._clock.monotonic()
        if reason != last_reason or now - logged_at >= LOG_SECONDS:
            self._last_wait = (reason, now)
            log.info("waiting for a cluster", reason=reason)

    # Requests of other nodes

    def _build_listener(self) -> Listener:
        metrics = Metrics()
        modules = {
            ApiKey.API_VERSIONS: SimpleNamespace(handle=_api_versions),
            ApiKey.DISCOVER_NODE: SimpleNamespace(handle=_discover_node),
            ApiKey.FORM_CLUSTER: SimpleNamespace(handle=_form_cluster),
        }
        router = Router(
            self,
            metrics=metrics,
            clock=self._clock,
            apis={key: KNOWN_APIS[key] for key in modules},
            modules=modules,
            # There are no rules yet, so only super users may take part.
            access=AccessControl(self._settings.authorization, Image).check,
        )
        return Listener(
            router,
            self._settings.network,
            clock=self._clock,
            metrics=metrics,
            guards=self._guards,
        )

    def needs_login(self, listener: str) -> bool:
        guard = self._guards.get(listener)
        return guard is not None and guard.protocol.has_sasl

    def _report(self) -> NodeReport:
        promised = self._promise.proposal.cluster_id if self._promise is not None else None
        return replace(self._me, promised=promised, cluster_id=self._directory.cluster_id)

    def discover_node(self) -> DiscoverNodeResponse:
        return encode_report(self._report())

    async def form_cluster(self, request: FormClusterRequest) -> FormClusterResponse:
        """Durably promise a proposal, or take note that all voters have promised it."""
        proposal = decode_proposal(request)
        async with self._storing:
            promise = self._promise
            known = self._promised_proposal
            wanted = self._directory.cluster_id or self._settings.formation.cluster_id or None
            error = rejection_reason(self._report(), proposal, known, wanted)
            if error is None and request.is_agreed and known is None:
                error = f"node {self._me.node_id} has promised nothing"
            if error is not None:
                return FormClusterResponse(
                    error_code=ErrorCode.INVALID_REQUEST, error_message=error
                )
            if promise is None:
                await self._store(Promise(proposal=proposal))
            elif request.is_agreed and not promise.is_agreed:
                self._promise = replace(promise, is_agreed=True)
                self._agreed.set()
        return FormClusterResponse(error_code=ErrorCode.NONE)

    # The data directory

    @property
    def _promised_proposal(self) -> ClusterProposal | None:
        return self._promise.proposal if self._promise is not None else None

    async def _store(self, promise: Promise) -> None:
        await self._in_thread(lambda: write_promise(self._files, self._directory.path, promise))
        self._promise = promise

    def _read_promise(self) -> Promise | None:
        return read_promise(self._files, self._directory.path)

    def _write_first_snapshot(self, proposal: ClusterProposal) -> None:
        """Write the snapshot with the first voters. All voters write the same bytes."""
        path = os.path.join(self._directory.make_metadata(), BOOTSTRAP.name)
        if not self._files.exists(path):
            image = Image(timestamp=proposal.proposed_ms)
            content = b"".join(snapshot_batches(image, proposal.voters, proposal.proposed_ms))
            write_atomically(self._files, path, content)
            self._files.sync_directory(self._directory.path)
        self._write_cluster_id(proposal.cluster_id)

    def _write_cluster_id(self, cluster_id: str) -> None:
        """From now on the directory belongs to the cluster, and no promise is needed."""
        self._directory.adopt_cluster(cluster_id)
        path = os.path.join(self._directory.path, PROMISE)
        if self._files.exists(path):
            self._files.unlink(path)

    def _has_metadata(self) -> bool:
        """Whether the metadata log has a snapshot or records."""
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
        own = [*settings.listening(), *settings.advertised()]
        controller = settings.controller_advertised()
        if controller is not None:
            own.append(controller)
        return [(address.host, address.port) for address in own]


def _api_versions(
    formation: Formation, context: RequestContext, _: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Lists no other API than those of a login: a client that connects too early closes the
    connection and retries.
    """
    keys = [ApiKey.API_VERSIONS]
    if formation.needs_login(context.listener):
        keys += [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    listed = tuple(
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in map(ALL_APIS.__getitem__, keys)
    )
    return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=listed)


def _discover_node(
    formation: Formation, _: RequestContext, __: DiscoverNodeRequest
) -> DiscoverNodeResponse:
    return formation.discover_node()


async def _form_cluster(
    formation: Formation, context: RequestContext, request: FormClusterRequest
) -> FormClusterResponse:
    if context.listener != CONTROLLER:
        raise Refused("unknown_api", "FormCluster is served on the controller listener only")
    return await formation.form_cluster(request)
