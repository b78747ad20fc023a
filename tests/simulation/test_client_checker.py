"""The client checker accepts correct observations and rejects wrong ones."""

import pytest

from riverrun.simulation.checks.client_checker import ClientChecker, Sent
from riverrun.simulation.failures import SafetyViolation

P = ("orders", 0)


def sent(number: int, *, began: float = 0.0, era: int = 0, is_idempotent: bool = True) -> Sent:
    return Sent(writer="w", is_idempotent=is_idempotent, number=number, began=began, era=era)


def with_records(count: int, *, synced: bool = True, idempotent: bool = True) -> ClientChecker:
    """A checker with records v0, v1, ... acknowledged at offsets 0, 1, ..."""
    checker = ClientChecker(is_synced_before_ack=synced)
    for number in range(count):
        value = b"v%d" % number
        made = sent(number, began=float(number), is_idempotent=idempotent)
        checker.sending(P, value, made)
        checker.acked(P, number, value, number + 0.5)
    return checker


def log(*numbers: int) -> list[tuple[int, bytes]]:
    return [(offset, b"v%d" % number) for offset, number in enumerate(numbers)]


def test_log_that_matches_acknowledgements_passes() -> None:
    with_records(4).check_log(P, log(0, 1, 2, 3), 10.0)


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (log(0, 1, 2), "gone"),
        (log(0, 1, 3, 2), "known as"),
        (log(1, 2, 3), "known as"),
        ([*log(0, 1, 2, 3), (4, b"v3")], "duplicated"),
        ([*log(0, 1, 2, 3), (4, b"strange")], "never sent"),
        ([(0, b"v0"), (1, b"v1"), (3, b"v3")], "gap"),
        ([], "gone"),
    ],
)
def test_log_that_differs_fails(found: list[tuple[int, bytes]], complaint: str) -> None:
    with pytest.raises(SafetyViolation, match=complaint):
        with_records(4).check_log(P, found, 10.0)


def test_records_without_idempotence_may_be_duplicated_but_not_lost() -> None:
    doubled = [*log(0, 1), (2, b"v1")]
    with_records(2, idempotent=False).check_log(P, doubled, 10.0)
    with pytest.raises(SafetyViolation, match="gone"):
        with_records(2, idempotent=False).check_log(P, log(0), 10.0)


def test_unacknowledged_record_may_be_present_or_not() -> None:
    for found in (log(0, 1), log(0, 1, 2)):
        checker = with_records(2)
        checker.sending(P, b"v2", sent(2, began=5.0))
        checker.check_log(P, found, 10.0)


def test_record_that_was_read_must_stay() -> None:
    checker = with_records(1)
    checker.sending(P, b"v1", sent(1, began=5.0))
    checker.read(P, 1, b"v1", 0, 6.0)
    with pytest.raises(SafetyViolation, match="gone"):
        checker.check_log(P, log(0), 10.0)


def test_two_reads_of_an_offset_must_agree() -> None:
    checker = with_records(2)
    with pytest.raises(SafetyViolation, match="known as b'v0'"):
        checker.read(P, 0, b"v1", 0, 6.0)


def test_record_sent_after_an_acknowledgement_has_a_higher_offset() -> None:
    checker = ClientChecker(is_synced_before_ack=True)
    checker.sending(P, b"v0", sent(0, began=0.0, is_idempotent=False))
    checker.acked(P, 1, b"v0", 1.0)
    checker.sending(P, b"v1", sent(1, began=2.0, is_idempotent=False))
    checker.acked(P, 0, b"v1", 3.0)
    with pytest.raises(SafetyViolation, match="higher offset was acknowledged"):
        checker.check_log(P, log(1, 0), 10.0)


def test_damage_may_remove_an_unsynced_suffix() -> None:
    checker = with_records(4, synced=False)
    checker.damaged({P: 2})
    checker.check_log(P, log(0, 1), 10.0)


def test_damage_must_not_remove_durable_records() -> None:
    checker = with_records(4, synced=False)
    checker.damaged({P: 2})
    with pytest.raises(SafetyViolation, match="gone"):
        checker.check_log(P, log(0), 10.0)


def test_damage_must_not_remove_records_that_are_synced_before_the_ack() -> None:
    checker = with_records(4, synced=True)
    checker.damaged({P: 2})
    with pytest.raises(SafetyViolation, match="gone"):
        checker.check_log(P, log(0, 1, 2), 10.0)


def test_damage_must_not_leave_a_gap() -> None:
    checker = with_records(4, synced=False)
    checker.damaged({P: 1})
    checker.sending(P, b"new", sent(9, began=5.0, era=1))
    checker.acked(P, 2, b"new", 6.0)
    with pytest.raises(SafetyViolation, match="a gap"):
        checker.check_log(P, [(0, b"v0"), (1, b"v1"), (2, b"new"), (3, b"v3")], 10.0)


def test_offsets_may_be_reused_after_damage() -> None:
    checker = with_records(4, synced=False)
    checker.damaged({P: 1})
    checker.sending(P, b"new", sent(9, began=5.0, era=1))
    checker.acked(P, 2, b"new", 6.0)
    checker.check_log(P, [(0, b"v0"), (1, b"v1"), (2, b"new")], 10.0)


def test_acknowledgement_of_a_request_from_before_the_damage_is_not_binding() -> None:
    checker = with_records(1, synced=False)
    checker.sending(P, b"v1", sent(1, began=5.0, era=0))
    checker.damaged({P: 1})
    checker.acked(P, 1, b"v1", 6.0)
    checker.check_log(P, log(0), 10.0)


def test_record_that_was_read_after_the_damage_must_stay() -> None:
    checker = with_records(3, synced=False)
    checker.damaged({P: 0})
    checker.read(P, 2, b"v2", 1, 6.0)
    with pytest.raises(SafetyViolation, match="gone"):
        checker.check_log(P, log(0, 1), 10.0)


def test_committed_offsets_must_not_go_back() -> None:
    checker = ClientChecker(is_synced_before_ack=True)
    for number, offset in enumerate((5, 9)):
        checker.committing(P, offset, float(number)).ended = number + 0.5
    checker.check_committed(P, 9, began=3.0, era=0)
    with pytest.raises(SafetyViolation, match="is 5, though 9"):
        checker.check_committed(P, 5, began=3.0, era=0)
    with pytest.raises(SafetyViolation, match="lost"):
        checker.check_committed(P, None, began=3.0, era=0)


def test_commit_without_a_response_may_be_visible_or_not() -> None:
    checker = ClientChecker(is_synced_before_ack=True)
    checker.check_committed(P, None, began=0.0, era=0)
    checker.committing(P, 5, 1.0).ended = 1.5
    checker.committing(P, 9, 2.0)
    checker.check_committed(P, 5, began=3.0, era=0)
    checker.check_committed(P, 9, began=3.0, era=0)
    with pytest.raises(SafetyViolation):
        checker.check_committed(P, 7, began=3.0, era=0)


def test_commits_before_the_damage_may_be_lost_unless_synced() -> None:
    for synced in (False, True):
        checker = ClientChecker(is_synced_before_ack=synced)
        checker.committing(P, 5, 1.0).ended = 1.5
        checker.committing(P, 9, 2.0).ended = 2.5
        checker.damaged({})
        if synced:
            with pytest.raises(SafetyViolation):
                checker.check_committed(P, 5, began=3.0, era=1)
        else:
            checker.check_committed(P, 5, began=3.0, era=1)
            checker.check_committed(P, None, began=3.0, era=1)


def test_topics_stay_as_confirmed() -> None:
    checker = ClientChecker(is_synced_before_ack=False)
    checker.topic_created("a")
    checker.topic_created("b")
    checker.topic_deleted("b")
    checker.topic_in_doubt("c")
    checker.damaged({})
    checker.check_topics(["a"])
    checker.check_topics(["a", "c"])
    with pytest.raises(SafetyViolation, match="a was created"):
        checker.check_topics([])
    with pytest.raises(SafetyViolation, match="b was deleted"):
        checker.check_topics(["a", "b"])
