"""Records logins, denials and administrative changes.

A handler only adds an event to a bounded queue. A task takes the events from the queue, logs them,
and passes them on to the writer of the topic, if there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

import msgspec
import structlog

from riverrun import __version__
from riverrun.ports.aio import OwnedTasks, Yielder
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.security.audit import (
    AuditQueue,
    ChangeEvent,
    ChangeOutcome,
    DenialEvent,
    Entry,
    LoginEvent,
    LostEvents,
    Origin,
    cut,
)
from riverrun.security.ocsf import ReportingNode, documents
from riverrun.security.principal import NODE_KIND
from riverrun.server.dispatch.context import Peer, RequestContext
from riverrun.server.security.audit.changes import (
    AUDITED,
    change_event,
    is_recorded,
    origin_of,
)
from riverrun.server.security.settings import inter_broker_listener, listener_protocols
from riverrun.wire.apis import KNOWN_APIS, ApiKey

if TYPE_CHECKING:
    from riverrun.server.settings import NodeSettings

BATCH_SECONDS: Final = 0.2
"""Events are collected for this time before they are logged and written."""
BATCH_EVENTS: Final = 500

log = structlog.get_logger("riverrun.audit")


class EventSink(Protocol):
    """Keeps encoded events until they are in the topic."""

    def add(self, events: Sequence[bytes]) -> int:
        """Returns how many of the events fit; the others are not kept."""

    async def close(self) -> None: ...


class AuditLog:
    """The audit events of one node. ``run`` until cancelled; ``close`` at the end."""

    def __init__(
        self,
        events_max: int,
        *,
        node_id: int,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        writes_topic: bool,
        inter_broker_listener: str,
    ) -> None:
        """``events_max`` events wait in the queue. ``writes_topic``: a broker that has this log
        calls ``write_to``."""
        self._inter_broker_listener = inter_broker_listener
        self.writes_topic = writes_topic
        self.audited = AUDITED
        dropped = metrics.counter(
            "riverrun_audit_events_dropped_total",
            "Audit events that were dropped, because the queue was full.",
        )
        self._queue = AuditQueue(events_max, dropped)
        self._clock = clock
        self._randomness = randomness
        self._reporter = ReportingNode(node_id=node_id, version=__version__)
        self._added = asyncio.Event()
        self._sink: EventSink | None = None
        self._recorded = metrics.counter(
            "riverrun_audit_events_total", "Audit events that were recorded."
        )

    # Called by listeners, routers and handlers

    def login(self, peer: Peer, user: str, mechanism: str, failure: str = "") -> None:
        """A login of a user; ``failure`` is why it was refused."""
        origin = Origin(principal=cut(user), client_host=peer.client_host, listener=peer.listener)
        event = LoginEvent(origin=origin, mechanism=cut(mechanism), failure=cut(failure))
        self._add(event, (LoginEvent, origin, event.mechanism, event.failure))

    def denied(
        self, context: RequestContext, operation: AclOperation, kind: ResourceType, name: str
    ) -> None:
        """A right that a request needs is missing."""
        api = KNOWN_APIS.get(context.api_key)
        event = DenialEvent(
            origin=origin_of(context),
            api="unknown" if api is None else api.title,
            operation=operation.name,
            resource_type=kind.name.lower(),
            resource_name=cut(name),
        )
        self._add(event, (DenialEvent, event))

    def changed(self, key: ApiKey, context: RequestContext, request: Any, response: Any) -> None:
        """An audited request was answered."""
        is_between_nodes = context.listener == self._inter_broker_listener
        if context.principal.kind == NODE_KIND or not is_recorded(
            key, request, is_between_nodes=is_between_nodes
        ):
            return
        event = change_event(key, context, request, response)
        if event is None:
            return
        # Only failures that are known already, and commits of consumers without a group, may be
        # many. Every other change is an event of its own.
        outcome = event.read_outcome() if type(response) is not bytes else ChangeOutcome()
        is_common = outcome.error or key is ApiKey.OFFSET_COMMIT
        what = (key, event.origin, event.resources[:1], outcome.error)
        self._add(event, (ChangeEvent, *what) if is_common else None)

    def _add(self, event: LoginEvent | DenialEvent | ChangeEvent, key: Any) -> None:
        self._queue.add(event, key, now=self._clock.monotonic(), now_ms=self._clock.now_ms())
        self._added.set()

    # The task

    def write_to(self, sink: EventSink) -> None:
        """Pass events on to a topic from now on."""
        self._sink = sink

    async def run(self) -> None:
        while True:
            await self._until_due()
            await asyncio.sleep(BATCH_SECONDS)
            self._added.clear()
            yielder = Yielder(self._clock, steps_max=1)
            while self._record():
                await yielder.step()

    async def close(self) -> None:
        """Record what is queued. The topic gets a limited time for it."""
        self._queue.end_repeats()
        while self._record():
            pass
        if self._sink is not None:
            await self._sink.close()

    async def _until_due(self) -> None:
        """Wait for an event, or until aggregated events must be queued."""
        due = self._queue.repeats_until
        limit = None if due is None else max(due - self._clock.monotonic(), 0.0)
        try:
            async with asyncio.timeout(limit):
                await self._added.wait()
        except TimeoutError:
            return

    def _record(self) -> bool:
        """Log a batch and pass it on. Returns whether there may be more."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        taken = self._queue.take(BATCH_EVENTS, now=now, now_ms=now_ms)
        encoded: list[bytes] = []
        origins: list[Entry] = []
        for entry in taken:
            _log(entry)
            for document in documents(entry, self._reporter):
                document["metadata"]["uid"] = str(self._randomness.uuid())
                encoded.append(msgspec.json.encode(document))
                origins.append(entry)
        self._recorded.value += len(encoded)
        if self._sink is not None:
            for entry in origins[self._sink.add(encoded) :]:
                self._queue.lose(entry)
        return len(self._queue) > 0


def _log(entry: Entry) -> None:
    event = entry.event
    more = {"count": entry.count} if entry.count > 1 else {}
    if isinstance(event, LostEvents):
        log.warning("audit events lost", count=event.count)
        return
    origin = event.origin
    where = {"user": origin.principal, "client": origin.client_host, "listener": origin.listener}
    match event:
        case LoginEvent():
            if event.failure:
                log.warning(
                    "login failed", **where, mechanism=event.mechanism, error=event.failure, **more
                )
            else:
                log.info("login", **where, mechanism=event.mechanism, **more)
        case DenialEvent():
            resource = f"{event.resource_type}:{event.resource_name}"
            log.warning(
                "denied",
                **where,
                api=event.api,
                operation=event.operation,
                resource=resource,
                **more,
            )
        case ChangeEvent():
            outcome = event.read_outcome()
            log.info(
                "change",
                **where,
                api=event.api,
                resources=", ".join(f"{kind}:{name}" for kind, name in event.resources),
                result=outcome.error or ("NONE" if outcome.is_known else "unknown"),
                **more,
            )
        case _:
            assert_never(event)


def build_audit(
    settings: NodeSettings,
    clock: Clock,
    randomness: Randomness,
    metrics: Metrics,
    tasks: OwnedTasks,
) -> AuditLog | None:
    """Build the audit log of a node and start its task.

    None if the node neither tells its users apart nor is asked to write the topic.
    """
    names = [address.name for address in settings.listening()]
    protocols = listener_protocols(settings.given, names)
    is_secure = bool(settings.authorization.authorizer) or any(
        one.has_sasl for one in protocols.values()
    )
    wanted = settings.audit.topic_enable
    if not is_secure and wanted != "true":
        return None
    audit = AuditLog(
        settings.audit.queue_size,
        node_id=settings.node_id,
        clock=clock,
        randomness=randomness,
        metrics=metrics,
        writes_topic=wanted != "false",
        inter_broker_listener=inter_broker_listener(settings.given, protocols),
    )
    tasks.start(audit.run(), name="audit")
    return audit
