"""The checks of a group find two owners, skipped records and commits that went back."""

from riverrun.chaos.checks.group_checks import MemberAction, MemberEvent, check_group, owners

TAKE, GIVE_UP, LOSE = MemberAction.TAKE, MemberAction.GIVE_UP, MemberAction.LOSE
READ, COMMIT, END = MemberAction.READ, MemberAction.COMMIT, MemberAction.END


def event(
    time: float, member: str, action: MemberAction, start: int = -1, end: int = -1
) -> MemberEvent:
    partition = -1 if action is END else 0
    return MemberEvent(
        time=time, member=member, action=action, partition=partition, start=start, end=end
    )


def handover(*, given: MemberAction = GIVE_UP, at: float = 3, start: int = 5) -> list[MemberEvent]:
    """Member b follows member a, which read and committed five records."""
    return [
        event(1, "a", TAKE),
        event(2, "a", READ, 0, 5),
        event(2.5, "a", COMMIT, 5, 5),
        event(3, "a", given),
        event(at + 0.5, "b", TAKE),
        event(5, "b", READ, start, 9),
    ]


def test_handover_after_the_former_owner_gave_up_is_sound() -> None:
    assert check_group(handover(), {0: 9}) == []
    assert owners(handover()) == {0: ["b"]}


def test_two_owners_are_found() -> None:
    [found] = check_group(handover(at=2.2), {0: 9})
    assert found == "partition 0: b has it from 2.700 s, a until 3.000 s"


def test_killed_member_owns_nothing() -> None:
    assert check_group(handover(given=END), {0: 9}) == []
    assert len(check_group(handover(given=END, at=2.2), {0: 9})) == 1


def test_member_that_was_fenced_notices_it_late() -> None:
    assert check_group(handover(given=LOSE, at=2.2), {0: 9}) == []


def test_records_that_nobody_read_are_found() -> None:
    assert check_group(handover(start=6), {0: 9}) == ["partition 0: nobody read 5 to 5"]
    assert check_group(handover(), {0: 12}) == ["partition 0: nobody read 9 to 11"]


def test_commit_that_went_back_is_found() -> None:
    [found] = check_group(handover(start=4), {0: 9})
    assert found == "partition 0: b starts at 4, but 5 was committed"
