"""The command ``riverrun simulate``."""

import pytest

from tests.simulation.test_node_scenario import simulate


def test_seeds_run_in_parallel() -> None:
    done = simulate("--seeds", "1..4", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4/4 seeds" in done.stdout
    assert "all promises held" in done.stdout


def test_budget_ends_the_run_early() -> None:
    done = simulate("--seeds", "1..1000", "--budget", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    count, _, total = done.stdout.split(" ")[0].partition("/")
    assert 1 <= int(count) < 50
    assert total == "1000"


def test_failure_shows_its_story_and_the_smallest_schedule() -> None:
    faults = "pause@1+0.2:broker evict@1.5+0:broker power-loss@3+0.5:broker reset@4+0:writer-1"
    done = simulate("--seed", "2", "--faults", faults, "--flaw", "sync-is-skipped")
    assert done.returncode in (10, 11, 12), done.stdout + done.stderr
    assert "broker: loses power" in done.stdout
    assert "The smallest schedule found (1 faults):" in done.stdout
    assert "riverrun simulate --seed 2 --faults 'power-loss@" in done.stdout


def test_story_option_prints_all_events() -> None:
    done = simulate("--seed", "6", "--faults", "kill@1+0.5:broker", "--story")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broker: killed" in done.stdout
    assert "faults stop" in done.stdout


def test_nodes_option_simulates_a_cluster() -> None:
    done = simulate("--seed", "2", "--nodes", "3", "--faults", "kill@1+0.5:controller", "--story")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 nodes, 3 of them vote" in done.stdout
    assert "leads the quorum in epoch 2" in done.stdout


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
def test_invalid_arguments_are_rejected(arguments: tuple[str, ...]) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr


def test_all_bugs_are_listed() -> None:
    done = simulate("--nodes", "3", "--flaw", "?")
    assert done.returncode == 0
    assert "votes-twice: a voter grants several votes" in done.stdout
