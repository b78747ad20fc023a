"""A leader and its followers: high watermark, ISR and proposals."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from riverrun.metadata.image import LeaderRecoveryState
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.replication.follower_progress import Contact
from riverrun.replication.leader_state import AWAIT_IMAGE, IMAGE_SECONDS, NOT_APPLIED, IsrVerdict
from tests.replication.leaders import BROKER_EPOCHS, ME, THREE, TWO, Leader, broker
from tests.storage.machines import NOW_MS, batch, flush, values_of

# The high watermark


def test_high_watermark_is_the_offset_that_all_in_sync_replicas_hold() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.append(b"b")
    assert leader.high_watermark == 0
    leader.fetch(TWO, 2)
    assert leader.high_watermark == 0, "replica 3 has not fetched in this epoch"
    leader.fetch(THREE, 1)
    assert leader.high_watermark == 1
    leader.fetch(THREE, 2)
    assert leader.high_watermark == 2


def test_produce_completes_when_the_last_in_sync_replica_fetches_beyond_its_batch() -> None:
    leader = Leader()
    codes: list[ErrorCode] = []
    leader.partition.when_committed(leader.append(b"a"), codes.append)
    leader.fetch(TWO, 1)
    assert codes == []
    leader.fetch(THREE, 1)
    assert codes == [ErrorCode.NONE]


def test_follower_out_of_sync_does_not_hold_back_the_high_watermark() -> None:
    leader = Leader(isr=(ME, TWO))
    leader.append(b"a")
    leader.fetch(TWO, 1)
    assert leader.high_watermark == 1


def test_follower_that_has_nearly_caught_up_holds_back_the_high_watermark() -> None:
    """Otherwise the high watermark would run ahead of it, and it could never join."""
    leader = Leader(isr=(ME,))
    leader.fetch(TWO, 0)
    leader.reject(leader.proposal(), ErrorCode.INELIGIBLE_REPLICA)
    leader.append(b"a")
    assert leader.high_watermark == 0
    leader.now += 20
    leader.partition.check_isr()
    assert leader.high_watermark == 1, "until it falls behind"


def test_with_flush_before_ack_the_leader_counts_its_flushed_records() -> None:
    leader = Leader(flush_before_ack=True)
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.fetch(THREE, 1)
    assert (leader.high_watermark, leader.flushes > 0) == (0, True)
    flush(leader.partition.log)
    leader.partition.advance()
    assert leader.high_watermark == 1


def test_acks_one_with_flush_before_ack_waits_for_the_leaders_disk_alone() -> None:
    leader = Leader(flush_before_ack=True)
    codes: list[ErrorCode] = []
    leader.partition.when_flushed(leader.append(b"a", acks=1), codes.append)
    flush(leader.partition.log)
    leader.partition.advance()
    assert (codes, leader.high_watermark) == ([ErrorCode.NONE], 0)


def test_duplicate_waits_for_the_high_watermark_like_its_original() -> None:
    leader = Leader()
    one = batch(b"a", producer=7, sequence=0)
    first = leader.partition.append(one[:], acks=-1, now_ms=NOW_MS)
    again = leader.partition.append(one[:], acks=-1, now_ms=NOW_MS)
    assert (again.is_duplicate, again.base_offset) == (True, first.base_offset)
    codes: list[ErrorCode] = []
    leader.partition.when_committed(Offset(again.last_offset + 1), codes.append)
    assert codes == []
    leader.fetch(TWO, 1)
    leader.fetch(THREE, 1)
    assert codes == [ErrorCode.NONE]


# Minimum ISR


def test_acks_all_is_rejected_below_the_minimum_isr() -> None:
    leader = Leader(isr=(ME,), min_insync_replicas=2)
    with pytest.raises(KafkaError) as caught:
        leader.append(b"a")
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.partition.log.end_offset == 0


def test_high_watermark_does_not_move_below_the_minimum_isr() -> None:
    leader = Leader(isr=(ME,), min_insync_replicas=2)
    leader.append(b"a", acks=1)
    assert leader.high_watermark == 0
    leader.apply(isr=(ME, TWO))
    leader.fetch(TWO, 1)
    assert leader.high_watermark == 1


def test_pending_produce_fails_when_the_isr_shrinks_below_the_minimum() -> None:
    leader = Leader(isr=(ME, TWO), min_insync_replicas=2)
    codes: list[ErrorCode] = []
    patient: list[ErrorCode] = []
    end = leader.append(b"a")
    leader.partition.when_committed(end, codes.append)
    leader.partition.when_committed(end, patient.append, waits_for_isr=True)
    leader.apply(isr=(ME,))
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert (patient, leader.high_watermark) == ([], 0)
    leader.fetch(TWO, 1)
    leader.accept(leader.proposal())
    assert (patient, leader.high_watermark) == ([ErrorCode.NONE], 1)


def test_minimum_isr_is_at_most_the_number_of_replicas() -> None:
    leader = Leader(min_insync_replicas=7)
    assert leader.partition.min_in_sync() == 3


def growing(isr: tuple[NodeId, ...], adding: tuple[NodeId, ...], minimum: int) -> Leader:
    leader = Leader(isr=isr, min_insync_replicas=minimum)
    leader.state = replace(leader.state, adding=adding)
    leader.apply()
    return leader


def test_minimum_rises_with_the_verdict_that_completes_a_growth() -> None:
    """The controller keeps replica 2 eligible, because two of three replicas must not commit."""
    leader = growing((ME,), adding=(THREE,), minimum=3)
    leader.append(b"a", acks=1)
    leader.fetch(THREE, 1)
    assert (leader.proposal().isr, leader.partition.min_in_sync()) == ((ME, THREE), 2)
    leader.accept(leader.proposal())
    assert (leader.high_watermark, leader.partition.min_in_sync()) == (0, 3)
    with pytest.raises(KafkaError) as caught:
        leader.append(b"b")
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_minimum_stays_with_a_verdict_that_does_not_complete_the_growth() -> None:
    leader = growing((ME,), adding=(TWO, THREE), minimum=3)
    leader.fetch(TWO, 0)
    leader.accept(leader.proposal())
    end = leader.append(b"a")
    leader.fetch(TWO, end)
    assert (leader.high_watermark, leader.partition.min_in_sync()) == (1, 1)


def test_pending_produce_completes_when_the_isr_shrinks() -> None:
    leader = Leader(min_insync_replicas=2)
    codes: list[ErrorCode] = []
    leader.partition.when_committed(leader.append(b"a"), codes.append)
    leader.fetch(TWO, 1)
    leader.now += 11
    leader.fetch(TWO, 1)
    leader.partition.check_isr()
    assert (leader.proposal().isr, codes) == ((ME, TWO), [])
    leader.accept(leader.proposal())
    assert codes == [ErrorCode.NONE]


# Fetches that count


def test_fetch_of_a_node_that_is_not_a_replica_is_rejected() -> None:
    leader = Leader()
    with pytest.raises(KafkaError) as caught:
        leader.partition.follower(ME)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_diverging_follower_gets_the_diverging_epoch_and_does_not_count() -> None:
    leader = Leader(isr=(ME, TWO), epoch=1)
    leader.append(b"a")
    leader.apply(leader=ME)
    leader.append(b"b")
    found = leader.fetch(TWO, 2, last_epoch=1)
    assert (found.diverging, found.data) == ((1, 1), b"")
    assert leader.high_watermark == 0
    assert values_of(leader.fetch(TWO, 1, last_epoch=1).data) == [(1, b"b")]
    assert leader.high_watermark == 1


@pytest.mark.parametrize("offset", [-1, 3])
def test_follower_outside_of_the_log_is_out_of_range(offset: int) -> None:
    leader = Leader()
    leader.append(b"a", b"b")
    assert leader.fetch(TWO, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert leader.partition.follower(TWO).end_offset == -1


def test_followers_read_up_to_the_end_of_the_log() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.append(b"b")
    assert values_of(leader.fetch(TWO, 0).data) == [(0, b"a"), (1, b"b")]
    assert leader.high_watermark == 0


def test_positions_of_followers_end_with_the_leader_epoch() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.apply(leader=ME)
    assert leader.partition.follower(TWO).end_offset == -1
    leader.fetch(THREE, 1)
    assert leader.high_watermark == 0


# Joining the ISR


def test_follower_joins_when_it_holds_all_acknowledged_records() -> None:
    leader = Leader(isr=(ME, TWO))
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.fetch(THREE, 0)
    assert leader.partition.proposal is None
    leader.fetch(THREE, 1)
    proposal = leader.proposal()
    assert proposal.isr == (ME, TWO, THREE)
    assert proposal.broker_epochs == {ME: 11, TWO: 12, THREE: 13}
    assert leader.proposed == [leader.partition]


def test_follower_below_the_start_of_the_epoch_does_not_join() -> None:
    """A new leader's high watermark may lag behind records that its predecessor acknowledged."""
    leader = Leader(isr=(ME,), min_insync_replicas=2)
    leader.append(b"a", acks=1)
    leader.append(b"b", acks=1)
    leader.apply(leader=ME)
    assert (leader.high_watermark, leader.partition.epoch_start) == (0, 2)
    leader.fetch(TWO, 1)
    assert leader.partition.proposal is None
    leader.fetch(TWO, 2)
    assert leader.proposal().isr == (ME, TWO)


def test_joining_follower_holds_back_the_high_watermark() -> None:
    leader = Leader(isr=(ME, TWO))
    leader.fetch(THREE, 0)
    assert leader.partition.maximal_isr == (ME, TWO, THREE)
    leader.append(b"a")
    leader.now += 9
    leader.fetch(TWO, 1)
    assert leader.high_watermark == 0
    leader.fetch(THREE, 1)
    assert leader.high_watermark == 1


@pytest.mark.parametrize("change", ["fenced", "leaving", "another incarnation", "unregistered"])
def test_broker_that_may_not_lead_does_not_join(change: str) -> None:
    leader = Leader(isr=(ME, TWO))
    known = broker(THREE)
    brokers = dict(leader.image.brokers)
    match change:
        case "fenced":
            brokers[THREE] = replace(known, is_fenced=True)
        case "leaving":
            brokers[THREE] = replace(known, in_controlled_shutdown=True)
        case "another incarnation":
            leader.fetch(THREE, 0)
            leader.reject(leader.proposal(), ErrorCode.INELIGIBLE_REPLICA)
            leader.now += 1
            brokers[THREE] = replace(known, epoch=77)
        case _:
            del brokers[THREE]
    leader.image = replace(leader.image, brokers=brokers)
    if change != "another incarnation":
        leader.fetch(THREE, 0)
    leader.partition.check_isr()
    assert leader.partition.proposal is None


def test_only_one_proposal_is_pending_at_a_time() -> None:
    leader = Leader(isr=(ME,))
    leader.fetch(TWO, 0)
    first = leader.proposal()
    leader.fetch(THREE, 0)
    assert leader.partition.proposal is first
    leader.accept(first)
    assert leader.partition.isr == (ME, TWO)
    assert leader.proposal().isr == (ME, TWO, THREE)
    assert leader.proposal().partition_epoch == 1


# Leaving the ISR


def test_follower_that_was_not_caught_up_for_too_long_leaves() -> None:
    leader = Leader()
    leader.fetch(TWO, 0)
    leader.fetch(THREE, 0)
    leader.append(b"a")
    leader.now += 10
    leader.fetch(TWO, 1)
    leader.partition.check_isr()
    assert leader.partition.proposal is None
    leader.now += 0.1
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)
    assert leader.partition.maximal_isr == (ME, TWO, THREE), "until the change is committed"


def test_follower_that_never_fetched_leaves() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.now += 10.1
    leader.fetch(TWO, 1)
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)


def test_follower_that_keeps_up_with_a_growing_log_stays() -> None:
    """It never holds the whole log, but always the log of a moment ago."""
    leader = Leader()
    for second in range(1, 40):
        leader.append(b"a")
        leader.now += 1
        for node in (TWO, THREE):
            leader.fetch(node, second - 1)
        leader.partition.check_isr()
        assert leader.partition.proposal is None, f"after {second} s"


def test_follower_that_falls_behind_by_messages_leaves_but_not_below_the_minimum_isr() -> None:
    leader = Leader(min_insync_replicas=2)
    for step in range(5):
        leader.append(*[b"x"] * 80)
        leader.now += 0.5
        leader.fetch(TWO, step)
        leader.fetch(THREE, step)
        leader.partition.check_isr()
    assert leader.partition.proposal is None, "the lag grows, but does not last yet"
    leader.append(*[b"x"] * 80)
    leader.now += 0.5
    leader.fetch(TWO, 200)
    leader.fetch(THREE, 7)
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)
    leader.accept(leader.proposal())
    for step in range(10):
        leader.append(*[b"x"] * 80)
        leader.now += 0.5
        leader.fetch(TWO, 201 + step)
        leader.partition.check_isr()
    assert leader.partition.proposal is None, "two replicas are the minimum"


def idle(leader: Leader, seconds: float) -> None:
    """All replicas hold the whole log and fetch; the periodic check leaves the partition out."""
    contact = Contact(BROKER_EPOCHS[TWO])
    for node in (TWO, THREE):
        leader.fetch(node, leader.partition.log.end_offset)
        leader.partition.followers[node].contact = contact
    leader.partition.check_isr()
    end = leader.now + seconds
    while leader.now < end:
        leader.now += 0.5
        contact.fetched_at = leader.now
        leader.peers.checked_at = leader.now
        assert leader.partition.is_quiet


def test_follower_of_a_quiet_partition_leaves_no_earlier_than_others() -> None:
    """Checks were left out, but it was caught up at each of them."""
    leader = Leader()
    idle(leader, 60)
    leader.append(b"a")
    assert not leader.partition.is_quiet
    leader.fetch(TWO, 1)
    leader.now += 9.9
    leader.partition.check_isr()
    assert leader.partition.proposal is None
    leader.fetch(TWO, 1)
    leader.now += 0.2
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)


def test_follower_that_stopped_while_the_partition_was_quiet_leaves_at_once() -> None:
    leader = Leader()
    idle(leader, 5)
    leader.now += 11
    leader.peers.checked_at = leader.now
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)


def test_stall_of_the_leader_removes_no_follower_of_a_quiet_partition() -> None:
    leader = Leader()
    idle(leader, 60)
    leader.append(b"a")
    leader.now += 30
    leader.partition.credit_stall(29)
    leader.partition.check_isr()
    assert leader.partition.proposal is None


def test_partition_is_quiet_while_the_broker_of_a_replica_out_of_sync_is_fenced() -> None:
    leader = Leader(isr=(ME, TWO))
    leader.fetch(TWO, 0)
    fenced = replace(broker(THREE), is_fenced=True)
    leader.image = replace(leader.image, brokers={**leader.image.brokers, THREE: fenced})
    leader.fetch(THREE, 0)
    leader.partition.check_isr()
    assert leader.partition.is_quiet
    assert leader.partition.proposal is None
    leader.image = replace(leader.image, brokers={**leader.image.brokers, THREE: broker(THREE)})
    assert not leader.partition.is_quiet, "it fetched before this node knew that it is back"
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO, THREE)


def test_image_ends_a_quiet_time() -> None:
    leader = Leader()
    idle(leader, 1)
    leader.partition.apply(replace(leader.state, isr=(ME, TWO), partition_epoch=1))
    assert leader.proposal().isr == (ME, TWO, THREE), "replica 3 is still caught up"


def test_stall_of_the_leader_removes_no_follower() -> None:
    leader = Leader()
    leader.fetch(TWO, 0)
    leader.fetch(THREE, 0)
    leader.append(b"a")
    leader.now += 60
    leader.partition.credit_stall(59)
    leader.partition.check_isr()
    assert leader.partition.proposal is None


# Responses of the controller


def shrinking() -> Leader:
    """A leader that has proposed to remove replica 3."""
    leader = Leader()
    leader.append(b"a")
    leader.now += 11
    leader.fetch(TWO, 1)
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)
    return leader


def test_response_with_more_replicas_may_arrive_before_the_image() -> None:
    leader = Leader(isr=(ME, TWO))
    leader.fetch(THREE, 0)
    assert leader.respond(leader.proposal()) is None
    assert (leader.partition.isr, leader.partition.partition_epoch) == ((ME, TWO, THREE), 1)
    leader.apply(isr=(ME, TWO, THREE))
    assert (leader.partition.isr, leader.partition.proposal) == ((ME, TWO, THREE), None)


def test_removed_replica_is_waited_for_until_the_image_arrives() -> None:
    """A min.insync.replicas that was raised before the removal may not be here yet."""
    leader = shrinking()
    assert leader.respond(leader.proposal()) == IMAGE_SECONDS
    assert (leader.partition.isr, leader.high_watermark) == ((ME, TWO, THREE), 0)
    leader.apply(isr=(ME, TWO))
    assert (leader.partition.isr, leader.high_watermark) == ((ME, TWO), 1)
    assert leader.partition.proposal is None


def test_image_may_arrive_before_the_response() -> None:
    leader = shrinking()
    proposal = leader.proposal()
    leader.apply(isr=(ME, TWO))
    assert (leader.partition.isr, leader.high_watermark) == ((ME, TWO), 1)
    leader.accept(proposal)
    assert leader.partition.partition_epoch == 1


def test_older_image_does_not_undo_the_response() -> None:
    leader = Leader(isr=(ME, TWO))
    leader.fetch(THREE, 0)
    leader.respond(leader.proposal())
    leader.apply(isr=(ME, TWO), partition_epoch=0)
    assert leader.partition.isr == (ME, TWO, THREE)


def test_image_of_the_same_partition_epoch_does_not_settle_the_next_proposal() -> None:
    leader = Leader(isr=(ME,))
    leader.fetch(TWO, 0)
    leader.respond(leader.proposal())
    leader.fetch(THREE, 0)
    next_proposal = leader.proposal()
    leader.apply(isr=(ME, TWO))
    assert leader.partition.proposal is next_proposal


def test_response_of_an_earlier_leader_epoch_is_ignored() -> None:
    leader = shrinking()
    proposal = leader.proposal()
    leader.apply(leader=ME)
    leader.accept(proposal)
    assert leader.partition.isr == (ME, TWO, THREE)
    assert leader.partition.partition_epoch == 1


@pytest.mark.parametrize("code", NOT_APPLIED)
def test_proposal_that_was_not_applied_is_withdrawn(code: ErrorCode) -> None:
    leader = Leader(isr=(ME, TWO))
    leader.fetch(THREE, 0)
    assert leader.reject(leader.proposal(), code) is None
    assert leader.partition.maximal_isr == (ME, TWO)
    leader.fetch(THREE, 0)
    assert leader.partition.proposal is None, "not again at once: the image may lag"
    leader.now += 1
    leader.fetch(THREE, 0)
    assert leader.proposal().isr == (ME, TWO, THREE)


@pytest.mark.parametrize("code", AWAIT_IMAGE)
def test_maximal_isr_counts_until_an_image_shows_the_outcome(
    code: ErrorCode,
) -> None:
    leader = Leader(isr=(ME, TWO))
    leader.fetch(THREE, 0)
    assert leader.reject(leader.proposal(), code) is not None
    assert set(leader.partition.maximal_isr) == {ME, TWO, THREE}
    leader.append(b"a")
    leader.now += 60
    leader.fetch(TWO, 1)
    assert leader.high_watermark == 0
    leader.apply()
    assert set(leader.partition.maximal_isr) == {ME, TWO}
    assert leader.high_watermark == 1


def test_proposal_without_a_verdict_is_sent_again() -> None:
    leader = shrinking()
    again = leader.reject(leader.proposal(), ErrorCode.UNKNOWN_SERVER_ERROR)
    assert again is not None
    assert leader.proposal().isr == (ME, TWO)


def test_leader_reports_recovery_after_an_unclean_election() -> None:
    leader = Leader(isr=(ME,))
    leader.apply(leader=ME, recovery=LeaderRecoveryState.RECOVERING)
    proposal = leader.proposal()
    assert proposal.isr == (ME,)
    leader.accept(proposal)
    assert leader.partition.proposal is None


def test_new_leader_fails_all_waiters_of_the_old_one() -> None:
    leader = Leader()
    codes: list[ErrorCode] = []
    end = leader.append(b"a")
    leader.partition.when_committed(end, codes.append)
    leader.partition.when_deleted(end, codes.append)
    leader.apply(leader=TWO)
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert leader.partition.proposal is None
    assert not leader.partition.followers


# Following


def test_followers_high_watermark_is_its_leaders_within_its_own_log() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.apply(leader=TWO)
    leader.partition.follower_appended(0, 7)
    assert leader.high_watermark == 1
    leader.partition.follower_appended(0, 0)
    assert leader.high_watermark == 1


def test_node_that_leads_again_starts_without_positions_of_followers() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.apply(leader=TWO)
    leader.apply(leader=ME)
    assert leader.high_watermark == 0
    leader.fetch(TWO, 1)
    leader.fetch(THREE, 1)
    assert leader.high_watermark == 1


# Deletion of records


def test_deletion_completes_when_no_live_replica_has_the_records() -> None:
    leader = Leader()
    leader.append(b"a", b"b")
    leader.fetch(TWO, 2)
    leader.fetch(THREE, 2)
    leader.partition.log.delete_records_before(2)
    codes: list[ErrorCode] = []
    leader.partition.when_deleted(leader.partition.log.start_offset, codes.append)
    leader.fetch(TWO, 2, start_offset=2)
    assert (codes, leader.partition.low_watermark) == ([], 0)
    brokers = dict(leader.image.brokers)
    brokers[THREE] = replace(broker(THREE), is_fenced=True)
    leader.image = replace(leader.image, brokers=brokers)
    leader.apply(isr=(ME, TWO))
    assert codes == [ErrorCode.NONE]


# The next epoch of the same leader


def test_deletion_completes_when_the_replicas_it_waits_for_leave() -> None:
    leader = Leader()
    leader.append(*[b"x"] * 4)
    for node in (TWO, THREE):
        leader.fetch(node, 4)
    leader.partition.log.delete_records_before(Offset(2))
    codes: list[ErrorCode] = []
    leader.partition.when_deleted(Offset(2), codes.append)
    assert codes == []
    alone = replace(leader.state, replicas=(ME,), directories=leader.state.directories[:1])
    leader.state = alone
    leader.apply(isr=(ME,), leader=ME)
    assert codes == [ErrorCode.NONE]


def test_proposal_that_raised_the_leader_epoch_is_not_sent_again_before_the_image() -> None:
    leader = Leader(isr=(ME, TWO))
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.fetch(THREE, 1)
    proposal, sent = leader.proposal(), len(leader.proposed)
    verdict = IsrVerdict(
        error=ErrorCode.NONE, isr=(ME, THREE), leader_epoch=LeaderEpoch(1), partition_epoch=1
    )
    assert leader.partition.apply_verdict(proposal, verdict) == IMAGE_SECONDS
    assert (len(leader.proposed), leader.proposal()) == (sent, proposal)
