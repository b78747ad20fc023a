"""``riverrun simulate`` as a person uses it."""

import pytest

from tests.simulation.test_node_scenario import simulate


def test_several_seeds_in_several_processes_with_progress() -> None:
    answer = simulate("--seeds", "1..4", "--jobs", "2")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "4/4 seeds" in answer.stdout
    assert "everything held" in answer.stdout


def test_a_budget_ends_the_run_early() -> None:
    answer = simulate("--seeds", "1..1000", "--budget", "1")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    done, _, total = answer.stdout.split(" ")[0].partition("/")
    assert 1 <= int(done) < 50
    assert total == "1000"


def test_a_failure_shows_its_story_and_the_smallest_schedule() -> None:
    faults = "pause@1+0.2:broker evict@1.5+0:broker power-loss@3+0.5:broker reset@4+0:writer-1"
    answer = simulate("--seed", "2", "--faults", faults, "--flaw", "sync-is-skipped")
    assert answer.returncode in (10, 11, 12), answer.stdout + answer.stderr
    assert "broker: loses power" in answer.stdout
    assert "The smallest schedule found (1 faults):" in answer.stdout
    assert "riverrun simulate --seed 2 --faults 'power-loss@" in answer.stdout


def test_the_story_can_be_read_without_a_failure() -> None:
    answer = simulate("--seed", "6", "--faults", "kill@1+0.5:broker", "--story")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "broker: killed" in answer.stdout
    assert "faults stop" in answer.stdout


def test_a_cluster_is_simulated_by_the_number_of_its_nodes() -> None:
    answer = simulate("--seed", "2", "--nodes", "3", "--faults", "kill@1+0.5:controller", "--story")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "3 nodes, 3 of them vote" in answer.stdout
    assert "leads the quorum in epoch 2" in answer.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--seeds", "a..b"),
        ("--seeds", "5..1"),
        ("--seed", "1", "--faults", "earthquake@1+1:broker"),
        ("--seed", "1", "--flaw", "none-of-them"),
        ("--seed", "1", "--nodes", "3", "--flaw", "sync-is-skipped"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[str, ...]) -> None:
    answer = simulate(*arguments)
    assert answer.returncode == 2, answer.stdout + answer.stderr


def test_flaws_are_listed_to_who_names_none_of_them() -> None:
    answer = simulate("--nodes", "3", "--flaw", "?")
    assert answer.returncode == 2
    assert "votes-twice: a voter gives its vote" in answer.stderr
