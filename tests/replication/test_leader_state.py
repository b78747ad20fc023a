"""A leader and its followers: what is committed, who is in sync, and what is proposed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from riverrun.metadata.image import LeaderRecoveryState
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset
from riverrun.replication.leader_state import AWAIT_IMAGE, NOT_APPLIED
from tests.replication.leaders import ME, THREE, TWO, Leader, broker
from tests.storage.machines import NOW_MS, batch, flush, values_of

# -- The high watermark ---------------------------------------------------------------------------


def test_the_high_watermark_is_what_all_in_sync_replicas_hold() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.append(b"b")
    assert leader.high_watermark == 0
    leader.fetch(TWO, 2)
    assert leader.high_watermark == 0, "replica 3 was not heard of in this epoch"
    leader.fetch(THREE, 1)
    assert leader.high_watermark == 1
    leader.fetch(THREE, 2)
    assert leader.high_watermark == 2


def test_a_producer_is_told_when_the_last_in_sync_replica_fetches_beyond_its_batch() -> None:
    leader = Leader()
    codes: list[ErrorCode] = []
    leader.partition.when_committed(leader.append(b"a"), codes.append)
    leader.fetch(TWO, 1)
    assert codes == []
    leader.fetch(THREE, 1)
    assert codes == [ErrorCode.NONE]


def test_a_follower_out_of_sync_does_not_hold_back_the_high_watermark() -> None:
    leader = Leader(isr=(ME, TWO))
    leader.append(b"a")
    leader.fetch(TWO, 1)
    assert leader.high_watermark == 1


def test_a_follower_that_has_nearly_caught_up_does() -> None:
    """Else the high watermark would run ahead of it, and it could never join."""
    leader = Leader(isr=(ME,))
    leader.fetch(TWO, 0)
    leader.refuse(leader.proposal(), ErrorCode.INELIGIBLE_REPLICA)
    leader.append(b"a")
    assert leader.high_watermark == 0
    leader.now += 20
    leader.partition.check_isr()
    assert leader.high_watermark == 1, "but not for ever"


def test_with_flush_before_ack_the_leader_counts_what_it_has_synced() -> None:
    leader = Leader(flush_before_ack=True)
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.fetch(THREE, 1)
    assert (leader.high_watermark, leader.syncs > 0) == (0, True)
    flush(leader.partition.log)
    leader.partition.advance()
    assert leader.high_watermark == 1


def test_acks_of_one_with_flush_before_ack_waits_for_our_own_disk_alone() -> None:
    leader = Leader(flush_before_ack=True)
    codes: list[ErrorCode] = []
    leader.partition.when_flushed(leader.append(b"a", acks=1), codes.append)
    flush(leader.partition.log)
    leader.partition.advance()
    assert (codes, leader.high_watermark) == ([ErrorCode.NONE], 0)


def test_a_duplicate_waits_for_the_high_watermark_like_its_original() -> None:
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


# -- The minimum ----------------------------------------------------------------------------------


def test_below_the_minimum_nothing_is_appended_with_acks_all() -> None:
    leader = Leader(isr=(ME,), min_insync_replicas=2)
    with pytest.raises(KafkaError) as caught:
        leader.append(b"a")
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.partition.log.end_offset == 0


def test_below_the_minimum_the_high_watermark_stands_still() -> None:
    leader = Leader(isr=(ME,), min_insync_replicas=2)
    leader.append(b"a", acks=1)
    assert leader.high_watermark == 0
    leader.apply(isr=(ME, TWO))
    leader.fetch(TWO, 1)
    assert leader.high_watermark == 1


def test_who_wrote_before_the_isr_shrank_below_the_minimum_is_told_after_the_append() -> None:
    leader = Leader(isr=(ME, TWO), min_insync_replicas=2)
    codes: list[ErrorCode] = []
    patient: list[ErrorCode] = []
    end = leader.append(b"a")
    leader.partition.when_committed(end, codes.append)
    leader.partition.when_committed(end, patient.append, is_patient=True)
    leader.apply(isr=(ME,))
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert (patient, leader.high_watermark) == ([], 0)
    leader.fetch(TWO, 1)
    leader.accept(leader.proposal())
    assert (patient, leader.high_watermark) == ([ErrorCode.NONE], 1)


def test_the_minimum_is_not_more_than_the_replicas_that_there_are() -> None:
    leader = Leader(min_insync_replicas=7)
    assert leader.partition.min_in_sync() == 3


def test_when_the_isr_shrinks_those_who_wait_are_woken() -> None:
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


# -- Fetches that count ---------------------------------------------------------------------------


def test_somebody_who_is_no_replica_is_refused() -> None:
    leader = Leader()
    with pytest.raises(KafkaError) as caught:
        leader.partition.follower(ME)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_with_another_history_is_told_where_it_diverged_and_does_not_count() -> None:
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
def test_a_follower_outside_of_the_log_is_out_of_range(offset: int) -> None:
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


def test_what_followers_told_is_forgotten_with_the_epoch() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.apply(leader=ME)
    assert leader.partition.follower(TWO).end_offset == -1
    leader.fetch(THREE, 1)
    assert leader.high_watermark == 0


# -- Joining --------------------------------------------------------------------------------------


def test_a_follower_joins_when_it_holds_all_that_was_acknowledged() -> None:
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


def test_a_follower_below_the_start_of_the_epoch_stays_out() -> None:
    """A new leader's high watermark may lag what its predecessor acknowledged."""
    leader = Leader(isr=(ME,), min_insync_replicas=2)
    leader.append(b"a", acks=1)
    leader.append(b"b", acks=1)
    leader.apply(leader=ME)
    assert (leader.high_watermark, leader.partition.epoch_start) == (0, 2)
    leader.fetch(TWO, 1)
    assert leader.partition.proposal is None
    leader.fetch(TWO, 2)
    assert leader.proposal().isr == (ME, TWO)


def test_while_a_join_is_under_way_the_joiner_holds_back_the_high_watermark() -> None:
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
def test_who_may_not_lead_does_not_join(change: str) -> None:
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
            leader.refuse(leader.proposal(), ErrorCode.INELIGIBLE_REPLICA)
            leader.now += 1
            brokers[THREE] = replace(known, epoch=77)
        case _:
            del brokers[THREE]
    leader.image = replace(leader.image, brokers=brokers)
    if change != "another incarnation":
        leader.fetch(THREE, 0)
    leader.partition.check_isr()
    assert leader.partition.proposal is None


def test_one_proposal_at_a_time_and_the_next_when_it_is_settled() -> None:
    leader = Leader(isr=(ME,))
    leader.fetch(TWO, 0)
    first = leader.proposal()
    leader.fetch(THREE, 0)
    assert leader.partition.proposal is first
    leader.accept(first)
    assert leader.partition.isr == (ME, TWO)
    assert leader.proposal().isr == (ME, TWO, THREE)
    assert leader.proposal().partition_epoch == 1


# -- Leaving --------------------------------------------------------------------------------------


def test_a_follower_that_was_not_caught_up_for_too_long_leaves() -> None:
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
    assert leader.partition.maximal_isr == (ME, TWO, THREE), "until that is committed"


def test_a_follower_that_never_came_leaves_too() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.fetch(TWO, 1)
    leader.now += 10.1
    leader.fetch(TWO, 1)
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)


def test_a_follower_that_keeps_up_with_a_growing_log_stays() -> None:
    """It never holds all that there is, but always all that there was a moment ago."""
    leader = Leader()
    for second in range(1, 40):
        leader.append(b"a")
        leader.now += 1
        for node in (TWO, THREE):
            leader.fetch(node, second - 1)
        leader.partition.check_isr()
        assert leader.partition.proposal is None, f"after {second} s"


def test_a_follower_that_falls_back_by_messages_leaves_but_never_below_the_minimum() -> None:
    leader = Leader(min_insync_replicas=2)
    for turn in range(5):
        leader.append(*[b"x"] * 80)
        leader.now += 0.5
        leader.fetch(TWO, turn)
        leader.fetch(THREE, turn)
        leader.partition.check_isr()
    assert leader.partition.proposal is None, "the lag grows, but does not last"
    leader.append(*[b"x"] * 80)
    leader.now += 0.5
    leader.fetch(TWO, 200)
    leader.fetch(THREE, 7)
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)
    leader.accept(leader.proposal())
    for turn in range(10):
        leader.append(*[b"x"] * 80)
        leader.now += 0.5
        leader.fetch(TWO, 201 + turn)
        leader.partition.check_isr()
    assert leader.partition.proposal is None, "two are the minimum"


def test_a_stall_of_our_own_condemns_nobody() -> None:
    leader = Leader()
    leader.fetch(TWO, 0)
    leader.fetch(THREE, 0)
    leader.append(b"a")
    leader.now += 60
    leader.partition.credit_stall(59)
    leader.partition.check_isr()
    assert leader.partition.proposal is None


# -- What the controller says ---------------------------------------------------------------------


def shrinking() -> Leader:
    """A leader that has proposed to go on without replica 3."""
    leader = Leader()
    leader.append(b"a")
    leader.now += 11
    leader.fetch(TWO, 1)
    leader.partition.check_isr()
    assert leader.proposal().isr == (ME, TWO)
    return leader


def test_the_answer_before_the_image() -> None:
    leader = shrinking()
    leader.accept(leader.proposal())
    assert (leader.partition.isr, leader.partition.partition_epoch) == ((ME, TWO), 1)
    assert leader.high_watermark == 1
    leader.apply(isr=(ME, TWO))
    assert (leader.partition.isr, leader.partition.proposal) == ((ME, TWO), None)


def test_the_image_before_the_answer() -> None:
    leader = shrinking()
    proposal = leader.proposal()
    leader.apply(isr=(ME, TWO))
    assert (leader.partition.isr, leader.high_watermark) == ((ME, TWO), 1)
    leader.accept(proposal)
    assert leader.partition.partition_epoch == 1


def test_an_older_image_does_not_undo_the_answer() -> None:
    leader = shrinking()
    leader.accept(leader.proposal())
    leader.apply(isr=(ME, TWO, THREE), partition_epoch=0)
    assert leader.partition.isr == (ME, TWO)


def test_an_image_of_the_same_epoch_leaves_the_next_proposal_alone() -> None:
    leader = shrinking()
    leader.accept(leader.proposal())
    leader.fetch(THREE, 1)
    following = leader.proposal()
    leader.apply(isr=(ME, TWO))
    assert leader.partition.proposal is following


def test_an_answer_of_an_earlier_leader_epoch_means_nothing() -> None:
    leader = shrinking()
    proposal = leader.proposal()
    leader.apply(leader=ME)
    leader.accept(proposal)
    assert leader.partition.isr == (ME, TWO, THREE)
    assert leader.partition.partition_epoch == 1


@pytest.mark.parametrize("code", NOT_APPLIED)
def test_a_proposal_that_was_not_applied_is_taken_back(code: ErrorCode) -> None:
    leader = Leader(isr=(ME, TWO))
    leader.fetch(THREE, 0)
    assert leader.refuse(leader.proposal(), code) is None
    assert leader.partition.maximal_isr == (ME, TWO)
    leader.fetch(THREE, 0)
    assert leader.partition.proposal is None, "not at once again: our image may lag"
    leader.now += 1
    leader.fetch(THREE, 0)
    assert leader.proposal().isr == (ME, TWO, THREE)


@pytest.mark.parametrize("code", AWAIT_IMAGE)
def test_when_the_outcome_is_unknown_both_outcomes_count_until_an_image_tells(
    code: ErrorCode,
) -> None:
    leader = Leader(isr=(ME, TWO))
    leader.fetch(THREE, 0)
    assert leader.refuse(leader.proposal(), code) is not None
    assert leader.partition.maximal_isr == (ME, TWO, THREE)
    leader.append(b"a")
    leader.now += 60
    leader.fetch(TWO, 1)
    assert leader.high_watermark == 0
    leader.apply()
    assert leader.partition.maximal_isr == (ME, TWO)
    assert leader.high_watermark == 1


def test_what_nobody_answered_is_asked_again() -> None:
    leader = shrinking()
    again = leader.refuse(leader.proposal(), ErrorCode.UNKNOWN_SERVER_ERROR)
    assert again is not None
    assert leader.proposal().isr == (ME, TWO)


def test_after_an_unclean_election_the_leader_says_that_it_has_recovered() -> None:
    leader = Leader(isr=(ME,))
    leader.apply(leader=ME, recovery=LeaderRecoveryState.RECOVERING)
    proposal = leader.proposal()
    assert proposal.isr == (ME,)
    leader.accept(proposal)
    assert leader.partition.proposal is None


def test_who_learns_of_its_successor_tells_all_that_wait() -> None:
    leader = Leader()
    codes: list[ErrorCode] = []
    end = leader.append(b"a")
    leader.partition.when_committed(end, codes.append)
    leader.partition.when_deleted(end, codes.append)
    leader.apply(leader=TWO)
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert leader.partition.proposal is None
    assert not leader.partition.followers


# -- As a follower --------------------------------------------------------------------------------


def test_a_followers_high_watermark_is_its_leaders_within_its_own_log() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.apply(leader=TWO)
    leader.partition.follower_appended(0, 7)
    assert leader.high_watermark == 1
    leader.partition.follower_appended(0, 0)
    assert leader.high_watermark == 1


def test_a_follower_that_becomes_leader_again_starts_with_nobodys_word() -> None:
    leader = Leader()
    leader.append(b"a")
    leader.apply(leader=TWO)
    leader.apply(leader=ME)
    assert leader.high_watermark == 0
    leader.fetch(TWO, 1)
    leader.fetch(THREE, 1)
    assert leader.high_watermark == 1


# -- Deleting -------------------------------------------------------------------------------------


def test_a_deletion_is_done_when_no_living_replica_has_the_records() -> None:
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
