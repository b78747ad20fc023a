"""Marked code turns a failed assertion into an error that stops the node."""

import pytest

from riverrun.model.invariants import InvariantViolation, state_change


def test_failed_assertion_becomes_a_violation_with_the_same_text() -> None:
    with pytest.raises(InvariantViolation, match="epoch went back") as raised, state_change:
        raise AssertionError("epoch went back")
    assert type(raised.value.__cause__) is AssertionError


def test_nested_marks_raise_one_violation() -> None:
    with pytest.raises(InvariantViolation) as raised, state_change, state_change:
        raise AssertionError("epoch went back")
    assert type(raised.value.__cause__) is AssertionError


def test_other_errors_pass_unchanged() -> None:
    error = OSError("disk full")
    with pytest.raises(OSError, match="disk full") as raised, state_change:
        raise error
    assert raised.value is error
