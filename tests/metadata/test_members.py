"""Three nodes share one metadata log under faults of one or all of them."""

import gc
from collections.abc import Iterator

import pytest

from riverrun.metadata.image import Image
from riverrun.metadata.settings import MetadataSettings
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.raft.types import ReplicaKey
from riverrun.simulation.disks.inodes import Directory
from riverrun.simulation.world import World
from tests.metadata.members import FOLDER, Member, Quorum, setting, value_of

SMALL = MetadataSettings(snapshot_bytes=3000)


@pytest.fixture
def world() -> Iterator[World]:
    with World(7) as made:
        yield made
    gc.collect()  # collect coroutines that killed processes never awaited


def others(quorum: Quorum, member: Member) -> list[Member]:
    return [one for one in quorum.members if one is not member]


def assert_not_controller(outcome: Image | BaseException) -> None:
    assert isinstance(outcome, KafkaError), repr(outcome)
    assert outcome.code is ErrorCode.NOT_CONTROLLER


def test_three_nodes_elect_a_leader_and_publish_equal_images(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.wait_for_leader()
    assert world.now < 2
    quorum.commit(1)
    quorum.wait_for_value(1)
    for member in quorum.members:
        assert member.running.leader == leader.id
        assert member.running.epoch == leader.running.epoch
        assert [voter.id for voter in member.running.voters] == [1, 2, 3]
        assert member.running.leader_endpoint() == (leader.id, leader.name, 9093)
        quorum.wait_for(lambda member=member: member.caught_up, 1)  # type: ignore[misc]
        assert member.running.is_active is (member is leader)
        assert member.running.current.features["metadata.version"] == 30


def test_a_new_leaders_stored_high_watermark_does_not_count_as_caught_up(world: World) -> None:
    """All nodes restart after an old snapshot. The leader knows only that as committed until it
    has committed an entry of its own. Otherwise the logs of newer topics would be removed."""
    quorum = Quorum(world, settings=SMALL)
    quorum.start()
    value = 0
    for _ in range(8):
        for _ in range(12):
            value += 1
            quorum.commit(value)
        quorum.wait_for_value(value)
        for member in quorum.members:
            member.kill()
            member.first_known.clear()
        for member in quorum.members:
            member.start()
        quorum.wait_for(lambda: all(member.first_known for member in quorum.members), 5)
        assert [member.first_known for member in quorum.members] == [[value]] * 3
    names = [path.rpartition("/")[2] for path in world.host("node1").disk.files()]
    assert any(name.endswith(".checkpoint") and not name.startswith("0" * 20) for name in names)


def test_a_killed_leader_is_replaced_within_a_second(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    quorum.commit(1)
    for value in range(2, 6):
        leader = quorum.wait_for_leader()
        killed_at = world.now
        leader.kill()
        quorum.commit(value)
        assert world.now - killed_at < 1
        leader.start()
        quorum.wait_for_value(value)


def test_a_silent_leader_is_replaced_and_resigns(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    old = quorum.commit(1)
    world.power_off(old.name)
    began = world.now
    old.log = None
    quorum.commit(2)
    assert world.now - began < 3
    old.start()
    quorum.wait_for_value(2)


def test_a_follower_that_restarts_catches_up(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    follower = others(quorum, leader)[0]
    follower.kill()
    for value in range(2, 20):
        quorum.commit(value)
    follower.start()
    quorum.wait_for_value(19)
    assert quorum.active() is leader, "it does not disturb the quorum"
    assert len(follower.deltas) < 40, "what it missed comes in few pieces"


def test_records_of_an_isolated_leader_are_truncated_and_its_waiters_fail(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    old = quorum.commit(1)
    rest = others(quorum, old)
    cut = world.network.partition([old.name], [member.name for member in rest])
    for value in (66, 67):
        old.append(setting(value))
    quorum.wait_for(lambda: value_of(old.running.newest) == 67)
    assert value_of(old.running.current) == 1
    end = old.running.end_offset
    new = quorum.wait_for_leader(but=old)
    assert new in rest
    quorum.wait_for(lambda: not old.running.is_active)
    quorum.wait_for(lambda: len(old.outcomes) == 3)
    for outcome in old.outcomes[1:]:
        assert_not_controller(outcome)
    assert old.running.newest is old.running.current, "what may never be is forgotten"
    quorum.commit(2)
    cut.heal()
    quorum.wait_for_value(2)
    assert old.running.end_offset == new.running.end_offset
    assert old.running.high_watermark <= end + 10
    assert 66 not in [value_of(image) for image in quorum.images.values()]
    old.append(setting(5))
    quorum.wait_for(lambda: len(old.outcomes) == 4)
    assert_not_controller(old.outcomes[-1])


def test_nothing_is_committed_without_a_majority_and_commits_resume_later(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    for member in others(quorum, leader):
        member.kill()
    leader.append(setting(2))
    quorum.wait_for(lambda: len(leader.outcomes) == 2)
    assert_not_controller(leader.outcomes[-1])
    assert value_of(leader.running.current) == 1, "what is known can still be read"
    assert quorum.active() is None
    for member in others(quorum, leader):
        member.start()
    quorum.commit(3)
    quorum.wait_for_value(3)


def test_power_loss_of_all_nodes_loses_nothing_committed(world: World) -> None:
    quorum = Quorum(world, settings=SMALL)
    quorum.start()
    for value in range(10):
        quorum.commit(value)
    for life in range(3):
        for member in quorum.members:
            member.power_off()
        for member in quorum.members:
            member.start()
        leader = quorum.wait_for_leader()
        assert value_of(leader.running.current) == 9 + life
        quorum.commit(10 + life)


def test_a_slow_disk_counts_only_after_its_flush(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    followers = others(quorum, leader)
    for member in followers:
        world.host(member.name).disk.slowness = 100.0
    world.run(1)
    leader = quorum.wait_for_leader()
    followers = others(quorum, leader)
    before = len(leader.outcomes)
    leader.append(setting(2))
    end = leader.running.end_offset
    leader_disk = world.host(leader.name).disk
    quorum.wait_for(lambda: any(member.running.end_offset > end for member in followers))
    copied = [member for member in followers if member.running.end_offset > end]
    synced = [m for m in copied if _synced(world, m) >= len(_log_of(world, m))]
    assert not synced, "they have it, but not on their disks"
    assert len(leader.outcomes) == before, "so it is not committed"
    assert leader_disk is not None
    quorum.wait_for(lambda: len(leader.outcomes) > before)
    assert isinstance(leader.outcomes[-1], Image)
    durable = [m for m in quorum.members if _synced(world, m) >= len(_log_of(world, leader))]
    assert len(durable) >= 2


def _log_of(world: World, member: Member) -> bytes:
    files = world.host(member.name).disk.files()
    return b"".join(data for path, data in sorted(files.items()) if path.endswith(".log"))


def _synced(world: World, member: Member) -> int:
    files = world.host(member.name).disk.durable_files()
    return sum(len(data) for path, data in files.items() if path.endswith(".log"))


def test_a_late_observer_fetches_a_snapshot(world: World) -> None:
    quorum = Quorum(world, settings=SMALL)
    quorum.start()
    for value in range(120):
        leader = quorum.commit(value)
    assert leader.running.describe().voters[0].log_end_offset > 100
    observer = quorum.member(4, is_controller=False, settings=SMALL)
    observer.start()
    quorum.wait_for(lambda: bool(observer.deltas))
    quorum.wait_for_value(119)
    first = observer.deltas[0]
    assert first.image.offset == -1 and first.changed_configs, "one step from nothing to all"
    assert first.changed_features
    names = [path.rpartition("/")[2] for path in world.host(observer.name).disk.files()]
    assert "00000000000000000000.log" not in names, "the log before the snapshot was not copied"
    described = leader.running.describe()
    assert [one.id for one in described.observers] == [4]
    quorum.commit(120)
    quorum.wait_for_value(120)
    observer.kill()
    observer.start()
    quorum.wait_for_value(120)


def test_a_follower_far_behind_publishes_a_snapshot_as_one_delta(world: World) -> None:
    quorum = Quorum(world, settings=SMALL)
    quorum.start()
    leader = quorum.commit(0)
    follower = others(quorum, leader)[0]
    cut = world.network.partition([follower.name], [m.name for m in others(quorum, follower)])
    for value in range(1, 120):
        quorum.commit(value)
    before = len(follower.deltas)
    old = follower.running.current
    cut.heal()
    quorum.wait_for_value(119)
    assert follower.deltas[before].image is old
    assert len(follower.deltas) - before < 30


def test_a_voter_that_lost_synced_records_returns_with_a_new_directory_id(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    broken = others(quorum, leader)[0]
    old_key = broken.voter.key
    quorum.wait_for_value(1)
    broken.kill()
    world.host(broken.name).disk.rot(f"{FOLDER}/00000000000000000000.log", 150, 3)
    broken.start()
    quorum.wait_for(lambda: broken.log is not None)
    assert broken.renewals == 1
    assert broken.voter.key != old_key
    assert not broken.running.current.features, "it dropped its log"
    quorum.wait_for_value(1)

    def keys(member: Member) -> list[ReplicaKey]:
        return [voter.key for voter in member.running.voters]

    def is_known_to_all() -> bool:
        return all(
            broken.voter.key in keys(member) and old_key not in keys(member)
            for member in quorum.members
        )

    quorum.wait_for(is_known_to_all, 30)
    assert [one.key for one in leader.running.voters].count(broken.voter.key) == 1
    others(quorum, broken)[0].kill()
    quorum.commit(2)
    quorum.wait_for_value(2)


def test_a_voter_without_its_election_state_returns_with_a_new_directory_id(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    forgetful = others(quorum, leader)[0]
    quorum.wait_for_value(1)
    forgetful.kill()
    folder = world.host(forgetful.name).disk.find(FOLDER)
    assert isinstance(folder, Directory), f"{FOLDER} is no directory"
    del folder.entries["quorum-state"], folder.durable["quorum-state"]
    forgetful.start()
    quorum.wait_for(lambda: forgetful.log is not None)
    assert forgetful.renewals == 1
    quorum.commit(2)
    quorum.wait_for_value(2)
    quorum.wait_for(lambda: forgetful.voter.key in [one.key for one in leader.running.voters], 30)


def test_a_voter_with_an_empty_disk_votes_again_after_catching_up(world: World) -> None:
    quorum = Quorum(world, settings=SMALL)
    quorum.start()
    for value in range(60):
        leader = quorum.commit(value)
    wiped = others(quorum, leader)[0]
    old_key = wiped.voter.key
    wiped.kill()
    world.host(wiped.name).disk.wipe()
    wiped.replace_disk()
    wiped.start()
    quorum.wait_for(lambda: wiped.voter.key in [v.key for v in leader.running.voters], 30)
    assert old_key not in [voter.key for voter in leader.running.voters]
    quorum.commit(100)
    quorum.wait_for_value(100)
    others(quorum, wiped)[0].kill()
    quorum.commit(101)


def test_voters_are_added_and_removed_while_the_cluster_runs(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    fourth = quorum.member(4)
    fourth.start()
    quorum.wait_for_value(1)

    async def add() -> None:
        await leader.running.add_voter(fourth.voter)

    async def remove() -> None:
        await leader.running.remove_voter(leader.voter.key)

    leader.call(add)
    quorum.wait_for(lambda: len(leader.running.voters) == 4)
    quorum.commit(2)
    leader.call(remove)
    new = quorum.wait_for_leader(but=leader)
    assert sorted(voter.id for voter in new.running.voters) == sorted(
        member.id for member in quorum.members if member is not leader
    )
    quorum.commit(3)
    quorum.wait_for_value(3)
    assert leader.running.leader == new.id, "who votes no more still follows"


def test_a_single_node_grows_into_three(world: World) -> None:
    quorum = Quorum(world, size=1, settings=SMALL)
    quorum.start()
    for value in range(60):
        quorum.commit(value)
    alone = quorum.members[0]
    for number in (2, 3):
        quorum.member(number, joins=True, settings=SMALL).start()
        quorum.wait_for(lambda n=number: len(alone.running.voters) == n, 20)  # type: ignore[misc]
    quorum.commit(100)
    quorum.wait_for_value(100)
    quorum.wait_for(lambda: all(len(member.running.voters) == 3 for member in quorum.members))
    alone.kill()
    quorum.commit(101)
    alone.start()
    quorum.wait_for_value(101)


def test_an_observer_that_reads_the_whole_log_knows_the_voters(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    quorum.commit(1)
    observer = quorum.member(4, is_controller=False)
    observer.start()
    quorum.wait_for(lambda: observer.log is not None)
    quorum.wait_for_value(1)
    assert [voter.id for voter in observer.running.voters] == [1, 2, 3]


def test_a_voter_with_a_new_address_is_updated(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    for moved in (others(quorum, leader)[0], leader):
        moved.kill()
        moved.port = 9999
        moved.start()
        quorum.commit(2)

        def is_known(moved: Member = moved) -> bool:
            return all(moved.voter in member.running.voters for member in quorum.members)

        quorum.wait_for(is_known, 20)


def test_a_leader_hands_over_when_it_stops(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    began = world.now
    leader.call(leader.running.resign)
    quorum.wait_for_leader(but=leader)
    assert world.now - began < 0.3


def test_a_leader_with_a_full_disk_resigns_and_loses_nothing(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    disk = world.host(leader.name).disk
    disk.capacity_bytes = disk.used_bytes
    leader.append(setting(2))
    quorum.wait_for(lambda: len(leader.outcomes) == 2)
    outcome = leader.outcomes[-1]
    assert isinstance(outcome, KafkaError)
    assert outcome.code is ErrorCode.NOT_CONTROLLER
    assert value_of(leader.running.newest) == 1
    quorum.wait_for_leader(but=leader)
    quorum.commit(3)
    # From its reserve it stores its vote and the new leader's records.
    quorum.wait_for_value(3)
    assert not leader.failures
    disk.capacity_bytes = 10**9
    quorum.commit(4)
    quorum.wait_for_value(4)


def test_a_member_without_disk_space_waits_until_there_is_some(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    full = others(quorum, leader)[0]
    disk = world.host(full.name).disk
    disk.capacity_bytes = 0
    for value in range(2, 6):
        quorum.commit(value)
    leader.call(leader.running.resign)
    quorum.wait_for_leader(but=leader)
    assert not full.failures
    disk.capacity_bytes = 10**9
    quorum.commit(6)
    quorum.wait_for_value(6)


def test_a_failed_fsync_stops_one_member_and_the_others_continue(world: World) -> None:
    quorum = Quorum(world)
    quorum.start()
    leader = quorum.commit(1)
    world.host(leader.name).disk.syncs_to_fail = 1
    leader.append(setting(2))
    quorum.wait_for(lambda: bool(leader.failures))
    leader.log = None
    quorum.commit(3)
    leader.start()
    quorum.wait_for_value(3)


@pytest.mark.parametrize("seed", range(4))
def test_committed_values_stay_and_members_agree_under_random_faults(seed: int) -> None:
    with World(100 + seed) as world:
        quorum = Quorum(world, settings=SMALL)
        chance = world.stream("test")
        quorum.start()
        acknowledged = -1
        for value in range(25):
            member = chance.choice(quorum.members)
            _happen(world, quorum, member, chance.randrange(6), chance.uniform(0.05, 1.5))
            leader = quorum.wait_for_leader(30)
            leader.append(setting(value))
            before = len(leader.outcomes)
            world.run_until(lambda leader=leader, n=before: len(leader.outcomes) > n, 3)  # type: ignore[misc]
            if leader.outcomes and isinstance(leader.outcomes[-1], Image):
                acknowledged = max(acknowledged, value_of(leader.outcomes[-1]))
        for member in quorum.members:
            if world.host(member.name).process is None:
                member.start()
        quorum.commit(1000, 60)
        quorum.wait_for_value(1000, 30)
        values = [value_of(image) for image in quorum.images.values()]
        assert acknowledged in values
        assert not any(member.failures for member in quorum.members)
    gc.collect()


def _happen(world: World, quorum: Quorum, member: Member, what: int, seconds: float) -> None:
    is_up = world.host(member.name).process is not None
    others_up = sum(world.host(m.name).process is not None for m in quorum.members) - is_up
    if not is_up:
        member.start()
    elif what == 0 and others_up == 2:
        member.kill()
    elif what == 1 and others_up == 2:
        member.power_off()
    elif what == 2:
        world.pause(member.name, seconds)
    elif what == 3:
        rest = [one.name for one in quorum.members if one is not member]
        cut = world.network.partition([member.name], rest, one_way=seconds < 0.7)
        world.after(seconds, cut.heal)
    elif what == 4:
        world.jump_clock(member.name, seconds * 1000)
