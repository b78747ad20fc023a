"""BrokerHeartbeat: the state of a broker, and the records of its changes (KIP-631).

    FENCED ──has read its registration──> SERVING ──wants to stop──> LEAVING ──> GONE
      ^                                      |                         |
      └── wants to be fenced, expired ───────┴─────────────────────────┘

A leaving broker may stop when it leads no partition and all active brokers have read that. From
then on, these brokers direct clients to the new leaders. A decommissioned broker that stops and
holds no replica any more is unregistered.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

from riverrun.cluster.brokers.modes import is_emptied
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions import leadership
from riverrun.cluster.partitions.departure import STEP_RECORDS, is_large
from riverrun.metadata.image import BrokerImage, Image
from riverrun.metadata.records import BrokerRegistrationChangeRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse

if TYPE_CHECKING:
    from riverrun.metadata.records import Record


class BrokerState(Enum):
    FENCED = "fenced"
    SERVING = "serving"
    LEAVING = "leaving"
    GONE = "gone"


def check_epoch(image: Image, node: int, epoch: int) -> BrokerImage:
    """The broker with this epoch. Raises STALE_BROKER_EPOCH for any other epoch."""
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


def state_of(broker: BrokerImage) -> BrokerState:
    if broker.is_fenced:
        return BrokerState.FENCED
    return BrokerState.LEAVING if broker.in_controlled_shutdown else BrokerState.SERVING


def next_state(
    image: Image, broker: BrokerImage, request: BrokerHeartbeatRequest, *, may_leave: bool
) -> BrokerState:
    """``may_leave``: all active brokers have read that a leaving broker leads nothing."""
    state = state_of(broker)
    wants_fence = request.want_fence or _is_all_offline(broker, request)
    match state:
        case BrokerState.FENCED:
            if request.want_shut_down:
                return BrokerState.GONE
            is_caught_up = request.current_metadata_offset >= broker.epoch
            return BrokerState.SERVING if is_caught_up and not wants_fence else BrokerState.FENCED
        case BrokerState.SERVING:
            if wants_fence:
                return BrokerState.GONE if request.want_shut_down else BrokerState.FENCED
            if not request.want_shut_down:
                return BrokerState.SERVING
            has_work = is_large(image) or leadership.leads_any(image, broker.id)
            return BrokerState.LEAVING if has_work else BrokerState.GONE
        case _:
            is_done = may_leave and not leadership.leads_any(image, broker.id)
            return BrokerState.GONE if is_done or wants_fence else BrokerState.LEAVING


def heartbeat(
    configs: Configs, image: Image, request: BrokerHeartbeatRequest, *, may_leave: bool
) -> Decision[BrokerHeartbeatResponse]:
    """Move a broker to its next state."""
    broker = check_epoch(image, request.broker_id, request.broker_epoch)
    state = next_state(image, broker, request, may_leave=may_leave)
    records: list[Record] = []
    match state:
        case BrokerState.SERVING if broker.is_fenced:
            records += leadership.unfence(configs, image, broker.id)
        case BrokerState.LEAVING:
            records += leadership.begin_shutdown(configs, image, broker.id, limit=STEP_RECORDS)
        case BrokerState.GONE if _is_retiring(image, broker, request):
            records += leadership.unregister(configs, image, broker.id)
        case BrokerState.FENCED | BrokerState.GONE:
            records += leadership.fence(configs, image, (broker.id,))
    if not records and not _is_all_offline(broker, request):
        # After another change they wait for the next heartbeat, which reports them again.
        records += _directory_changes(configs, image, broker, request)
    return Decision(
        records=tuple(records),
        response=BrokerHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            is_caught_up=request.current_metadata_offset >= broker.epoch,
            is_fenced=state in (BrokerState.FENCED, BrokerState.GONE),
            should_shut_down=state is BrokerState.GONE,
        ),
    )


def _is_retiring(image: Image, broker: BrokerImage, request: BrokerHeartbeatRequest) -> bool:
    """A broker that is only silent may come back, so it must have asked to stop."""
    return (
        request.want_shut_down
        and is_emptied(image, broker.id)
        and not leadership.holds_any(image, broker.id)
    )


def _is_all_offline(broker: BrokerImage, request: BrokerHeartbeatRequest) -> bool:
    """Whether the broker has no directory left. It is fenced then; no record could express it."""
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
