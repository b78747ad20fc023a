"""Who waits for an offset: in order, told once, and cheap to give up."""

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


def test_those_whose_offset_is_reached_are_told_and_the_others_wait() -> None:
    waits, callers = OffsetWaiters(), [Caller() for _ in range(4)]
    for caller, end in zip(callers, (3, 5, 4, 3), strict=True):
        waits.add(Offset(end), caller)
    assert [end for end, _, _ in waits.queue] == [3, 3, 4, 5]
    waits.reached(4)
    assert [caller.codes for caller in callers] == [[NONE], [], [NONE], [NONE]]
    assert len(waits) == 1


def test_a_refusal_concerns_whoever_is_reached_except_the_patient() -> None:
    waits, early, patient, late = OffsetWaiters(), Caller(), Caller(), Caller()
    waits.add(Offset(1), early)
    waits.add(Offset(1), patient, is_patient=True)
    waits.add(Offset(2), late)
    waits.refuse(1, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert early.codes == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert (patient.codes, late.codes, len(waits)) == ([], [], 2)
    waits.reached(2)
    assert (patient.codes, late.codes) == ([NONE], [NONE])


def test_who_gives_up_is_gone_at_the_latest_when_half_of_them_have() -> None:
    waits, callers = OffsetWaiters(), [Caller() for _ in range(10)]
    for place, caller in enumerate(callers):
        waits.add(Offset(place), caller)
    for number, caller in enumerate(callers, 1):
        waits.cancel(caller)
        assert len(waits) == 10 - number
        assert len(waits.queue) <= 2 * len(waits) or number < 5
    assert not waits.queue
    waits.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert all(not caller.codes for caller in callers)
