"""BrokerHeartbeat: unfencing, controlled shutdown, reports about directories."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.cluster.brokers.heartbeats import heartbeat
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.messages import heartbeat_request
from tests.cluster.states import NONE, P, cluster, directory, state, topic

CONFIGS = make_configs()
NODE = NodeId(1)
WHOLE = P(1, (1, 2, 3))
OTHER = UUID(int=99 << 64)


def beat(
    image: Image, *, may_leave: bool = False, **fields: object
) -> tuple[Image, BrokerHeartbeatResponse]:
    request = heartbeat_request(image, 1, **fields)  # type: ignore[arg-type]
    decision = heartbeat(CONFIGS, image, request, may_leave=may_leave)
    after = replayed(image, decision.records) if decision.records else image
    return after, decision.response


def flags(response: BrokerHeartbeatResponse) -> tuple[bool, bool, bool]:
    assert response.error_code is ErrorCode.NONE
    return response.is_caught_up, response.is_fenced, response.should_shut_down


def test_broker_is_unfenced_once_it_has_read_its_registration() -> None:
    image = cluster(P(NONE, (), elr=(1,), last=(1,)), fenced=(1,))
    epoch = image.brokers[NODE].epoch
    same, early = beat(image, offset=epoch - 1)
    assert (same, flags(early)) == (image, (False, True, False))
    after, late = beat(image, offset=epoch)
    assert flags(late) == (True, False, False)
    assert after.is_active(NODE)
    assert state(topic(after).partitions[0]) == P(1, (1,))


def test_broker_is_fenced_on_request() -> None:
    image = cluster(WHOLE, fenced=(2,))
    fenced, response = beat(image, want_fence=True)
    assert flags(response) == (True, True, False)
    assert fenced.brokers[NODE].is_fenced
    assert topic(fenced).partitions[0].leader == 3
    again, response = beat(fenced, want_fence=True)
    assert (again, flags(response)) == (fenced, (True, True, False))


def test_ordinary_heartbeat_changes_nothing() -> None:
    image = cluster(WHOLE)
    after, response = beat(image)
    assert (after, flags(response)) == (image, (True, False, False))


@pytest.mark.parametrize("epoch", (0, 10_000))
def test_requests_with_a_stale_broker_epoch_are_refused(epoch: int) -> None:
    with pytest.raises(KafkaError) as refused:
        beat(cluster(WHOLE), epoch=epoch)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_heartbeat_of_an_unregistered_broker_is_refused() -> None:
    image = cluster(WHOLE)
    request = heartbeat_request(image, 9, epoch=3)
    with pytest.raises(KafkaError) as refused:
        heartbeat(CONFIGS, image, request, may_leave=True)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


# Leaving


def test_leaders_move_before_a_broker_may_stop() -> None:
    image, response = beat(cluster(WHOLE), want_shut_down=True, may_leave=True)
    assert flags(response) == (True, False, False)
    assert state(topic(image).partitions[0]) == P(2, (2, 3))
    same, waits = beat(image, want_shut_down=True, may_leave=False)
    assert (same, flags(waits)) == (image, (True, False, False))
    gone, last = beat(image, want_shut_down=True, may_leave=True)
    assert flags(last) == (True, True, True)
    assert gone.brokers[NODE].is_fenced


def test_broker_without_leaderships_may_stop_at_once() -> None:
    image, response = beat(cluster(P(2, (1, 2, 3))), want_shut_down=True)
    assert flags(response) == (True, True, True)
    assert state(topic(image).partitions[0]) == P(2, (2, 3))


def test_fenced_broker_may_stop_at_once() -> None:
    image = cluster(P(2, (2, 3)), fenced=(1,))
    after, response = beat(image, want_shut_down=True)
    assert (after, flags(response)) == (image, (True, True, True))


def test_last_in_sync_replica_may_stop_and_stays_eligible() -> None:
    image, _ = beat(cluster(P(1, (1,), replicas=(1,))), want_shut_down=True)
    assert state(topic(image).partitions[0]) == P(NONE, (), elr=(1,), last=(1,), replicas=(1,))
    _, response = beat(image, want_shut_down=True, may_leave=True)
    assert response.should_shut_down


# Directories


def two_directories(image: Image) -> Image:
    broker = image.brokers[NODE]
    both = replace(broker, directories=(*broker.directories, OTHER))
    return replace(image, brokers={**image.brokers, NODE: both})


def test_other_replicas_lead_partitions_in_a_failed_directory() -> None:
    image = two_directories(cluster(WHOLE))
    after, response = beat(image, offline=(directory(1),))
    assert not response.is_fenced
    assert state(topic(after).partitions[0]) == P(2, (2, 3))
    assert after.brokers[NODE].directories == (OTHER,)
    again, _ = beat(after, offline=(directory(1),))
    assert again is after


def test_partitions_in_other_directories_are_unchanged() -> None:
    image = two_directories(cluster(WHOLE))
    after, _ = beat(image, offline=(OTHER,))
    assert state(topic(after).partitions[0]) == WHOLE


def test_broker_without_a_directory_is_fenced_until_it_has_one() -> None:
    image, response = beat(cluster(WHOLE), offline=(directory(1),))
    assert flags(response) == (True, True, False)
    assert state(topic(image).partitions[0]) == P(2, (2, 3))
    same, response = beat(image, offline=(directory(1),))
    assert (same, response.is_fenced) == (image, True)
    _, response = beat(image)
    assert not response.is_fenced


def test_cordoned_directories_are_recorded_once() -> None:
    image, _ = beat(cluster(WHOLE), cordoned=(directory(1),))
    assert image.brokers[NODE].cordoned_directories == (directory(1),)
    again, _ = beat(image, cordoned=(directory(1),))
    assert again is image
