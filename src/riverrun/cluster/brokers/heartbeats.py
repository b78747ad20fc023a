"""BrokerHeartbeat: what a broker wants, what it gets, and the records that make it so (KIP-631).

    FENCED ──caught up with its registration──> SERVING ──wants to stop──> LEAVING ──> GONE
      ^                                            |                         |
      └─────────── wants it, session ended ────────┴─────────────────────────┘

A broker that leaves may go when it leads nothing and every active broker has read that: whoever
asks those brokers then is sent to the new leaders.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions import leadership
from riverrun.metadata.image import BrokerImage, Image
from riverrun.metadata.records import BrokerRegistrationChangeRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse

if TYPE_CHECKING:
    from riverrun.metadata.records import Record


class State(Enum):
    FENCED = "fenced"
    SERVING = "serving"
    LEAVING = "leaving"
    GONE = "gone"


def check_epoch(image: Image, node: int, epoch: int) -> BrokerImage:
    """The broker, if it speaks for its latest registration; else STALE_BROKER_EPOCH."""
    broker = image.brokers.get(NodeId(node))
    if broker is None:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {node}"
        )
    if broker.epoch != epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}",
        )
    return broker


def state_of(broker: BrokerImage) -> State:
    if broker.is_fenced:
        return State.FENCED
    return State.LEAVING if broker.in_controlled_shutdown else State.SERVING


def next_state(
    image: Image, broker: BrokerImage, request: BrokerHeartbeatRequest, *, may_leave: bool
) -> State:
    """``may_leave``: the others have read that a leaving broker leads nothing any more."""
    state = state_of(broker)
    wants_fence = request.want_fence or _is_all_offline(broker, request)
    match state:
        case State.FENCED:
            if request.want_shut_down:
                return State.GONE
            is_caught_up = request.current_metadata_offset >= broker.epoch
            return State.SERVING if is_caught_up and not wants_fence else State.FENCED
        case State.SERVING:
            if wants_fence:
                return State.GONE if request.want_shut_down else State.FENCED
            if not request.want_shut_down:
                return State.SERVING
            return State.LEAVING if leadership.leads_any(image, broker.id) else State.GONE
        case _:
            is_done = may_leave and not leadership.leads_any(image, broker.id)
            return State.GONE if is_done or wants_fence else State.LEAVING


def heartbeat(
    configs: Configs, image: Image, request: BrokerHeartbeatRequest, *, may_leave: bool
) -> Decision[BrokerHeartbeatResponse]:
    broker = check_epoch(image, request.broker_id, request.broker_epoch)
    state = next_state(image, broker, request, may_leave=may_leave)
    records: list[Record] = []
    match state:
        case State.SERVING if broker.is_fenced:
            records += leadership.unfence(configs, image, broker.id)
        case State.LEAVING:
            records += leadership.begin_shutdown(configs, image, broker.id)
        case State.FENCED | State.GONE:
            records += leadership.fence(configs, image, (broker.id,))
    if not records and not _is_all_offline(broker, request):
        # Beside another change they wait for the next heartbeat, which says the same again.
        records += _directory_changes(configs, image, broker, request)
    return Decision(
        records=tuple(records),
        response=BrokerHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            is_caught_up=request.current_metadata_offset >= broker.epoch,
            is_fenced=state in (State.FENCED, State.GONE),
            should_shut_down=state is State.GONE,
        ),
    )


def _is_all_offline(broker: BrokerImage, request: BrokerHeartbeatRequest) -> bool:
    """A broker without any directory has nothing to serve; a record could not even say so."""
    return bool(broker.directories) and all(
        one in request.offline_log_dirs for one in broker.directories
    )


def _directory_changes(
    configs: Configs, image: Image, broker: BrokerImage, request: BrokerHeartbeatRequest
) -> list[Record]:
    lost = [one for one in request.offline_log_dirs if one in broker.directories and one]
    records: list[Record] = []
    if lost:
        records += leadership.directories_lost(configs, image, broker, lost)
    wanted = request.cordoned_log_dirs
    if wanted is None:
        return records
    cordoned: tuple[UUID, ...] = tuple(one for one in wanted if one is not None)
    if frozenset(cordoned) != frozenset(broker.cordoned_directories or ()):
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=cordoned
            )
        )
    return records
