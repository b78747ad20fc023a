"""Waiters are called in order and once, and cancelling is cheap."""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import Offset
from riverrun.replication.offset_waiters import OffsetWaiters

NONE = ErrorCode.NONE


class Caller:
    def __init__(self) -> None:
        self.codes: list[ErrorCode] = []

    def __call__(self, code: ErrorCode) -> None:
        self.codes.append(code)


def test_waiters_up_to_the_reached_offset_are_called() -> None:
    waiters, callers = OffsetWaiters(), [Caller() for _ in range(4)]
    for caller, end in zip(callers, (3, 5, 4, 3), strict=True):
        waiters.add(Offset(end), caller)
    assert [end for end, _, _ in waiters.queue or ()] == [3, 3, 4, 5]
    waiters.reached(4)
    assert [caller.codes for caller in callers] == [[NONE], [], [NONE], [NONE]]
    assert len(waiters) == 1


def test_refuse_fails_waiters_up_to_the_offset_except_those_that_wait_for_the_isr() -> None:
    waiters, early, patient, late = OffsetWaiters(), Caller(), Caller(), Caller()
    waiters.add(Offset(1), early)
    waiters.add(Offset(1), patient, waits_for_isr=True)
    waiters.add(Offset(2), late)
    waiters.refuse(1, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert early.codes == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert (patient.codes, late.codes, len(waiters)) == ([], [], 2)
    waiters.reached(2)
    assert (patient.codes, late.codes) == ([NONE], [NONE])


def test_cancelled_waiters_are_removed_when_they_are_half_of_the_queue() -> None:
    waiters, callers = OffsetWaiters(), [Caller() for _ in range(10)]
    for place, caller in enumerate(callers):
        waiters.add(Offset(place), caller)
    for number, caller in enumerate(callers, 1):
        waiters.cancel(caller)
        assert len(waiters) == 10 - number
        assert len(waiters.queue or ()) <= 2 * len(waiters) or number < 5
    assert not waiters.queue
    waiters.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert all(not caller.codes for caller in callers)


def test_a_queue_without_waiters_can_be_used() -> None:
    waiters, late = OffsetWaiters(), Caller()
    waiters.reached(1)
    waiters.refuse(1, ErrorCode.NOT_ENOUGH_REPLICAS)
    waiters.cancel(late)
    waiters.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not waiters.queue
    assert len(waiters) == 0
    waiters.add(Offset(1), late)
    assert len(waiters) == 1
    waiters.reached(1)
    assert late.codes == [NONE]
