"""The health of a cluster in words."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.console.health import DiskFact, HealthFacts, Level, assess

GIB = 1024**3
DAY = 86_400.0


def facts(**more: Any) -> HealthFacts:
    known: dict[str, Any] = {
        "cluster": "main",
        "nodes": [1, 2, 3],
        "dead": [],
        "partitions": 12,
        "offline": {},
        "under_min_isr": {},
        "under_replicated": {},
        "has_controller": True,
        "voters": 3,
    }
    return HealthFacts(**{**known, **more})


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({}, "All 3 nodes are alive and every partition is fully replicated."),
        ({"partitions": 0}, "All 3 nodes are alive and there are no topics yet."),
        ({"nodes": [1]}, "The node is alive and every partition has a leader."),
        (
            {"is_limited": True},
            "All 3 nodes are alive and every partition that you may see is fully replicated.",
        ),
        (
            {"is_limited": True, "partitions": 0},
            "All 3 nodes are alive and there are no topics that you may see.",
        ),
        (
            {"has_controller": None},
            "All 3 nodes are alive and every partition is fully replicated.",
        ),
    ],
)
def test_a_healthy_cluster_has_no_concerns(more: dict[str, Any], sentence: str) -> None:
    health = assess(facts(**more))
    assert (health.level, health.sentence, health.concerns) == (Level.GOOD, sentence, [])


def test_a_dead_node_is_a_concern_with_a_remedy_and_a_link() -> None:
    health = assess(facts(dead=[2], under_replicated={"orders": 4, "clicks": 1}))
    assert health.level is Level.CARE
    assert health.sentence == (
        "1 of 3 nodes does not respond and 5 partitions are not fully replicated."
    )
    dead, behind = health.concerns
    assert dead.text == "Node 2 does not respond." and dead.link == "/ui/main/nodes/2"
    assert "riverrun cluster decommission 2" in dead.remedy
    assert behind.text == "5 partitions of orders, clicks have replicas that are not in sync."


def test_what_fails_for_clients_comes_first() -> None:
    health = assess(
        facts(dead=[1, 2], offline={"orders": 1}, under_min_isr={"clicks": 2}, cluster="a b")
    )
    assert health.level is Level.BAD
    assert health.sentence == (
        "1 partition has no leader and cannot be used, 2 partitions cannot be written and 2 of 3 "
        "nodes do not respond."
    )
    assert [concern.level for concern in health.concerns] == [Level.BAD] * 4
    assert health.concerns[0].link == "/ui/a%20b/topics?sort=under_replicated&order=desc"
    assert "node 1, 2" in health.concerns[0].remedy


def test_a_cluster_without_a_controller_needs_a_majority() -> None:
    health = assess(facts(has_controller=False, voters=5))
    assert health.sentence == "No controller is active."
    assert "at least 3 of 5" in health.concerns[0].remedy


@pytest.mark.parametrize(
    ("free", "level"), [(11, None), (9, Level.CARE), (4, Level.BAD), (0, Level.BAD)]
)
def test_a_disk_that_is_nearly_full_is_a_concern(free: int, level: Level | None) -> None:
    health = assess(facts(disks=[DiskFact(3, free * GIB, 100 * GIB)]))
    found = health.concerns[0].level if health.concerns else None
    assert found == level
    if level is not None:
        assert "The disk of node 3 is nearly full" in health.concerns[0].text
        assert health.sentence.endswith("but something needs care.")


@pytest.mark.parametrize(
    ("seconds", "text", "level"),
    [
        (31 * DAY, None, None),
        (5.5 * DAY, "The certificate of a:1 ends in 5 days.", Level.CARE),
        (3600.0, "The certificate of a:1 ends in 0 days.", Level.BAD),
        (-5.0, "The certificate of a:1 has ended.", Level.BAD),
    ],
)
def test_certificates_that_end_soon_are_a_concern(
    seconds: float, text: str | None, level: Level | None
) -> None:
    concerns = assess(facts(certificates={"a:1": seconds})).concerns
    assert [(one.text, one.level) for one in concerns] == ([(text, level)] if text else [])


def test_moves_that_stall_are_a_concern() -> None:
    (concern,) = assess(facts(stalled_moves=[f"t-{index}" for index in range(7)])).concerns
    assert concern.text == (
        "7 moves of partitions do not progress: t-0, t-1, t-2, t-3, t-4 and 2 more."
    )
    assert concern.link == "/ui/main/moves"
