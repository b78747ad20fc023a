"""SIGKILL under load: acknowledged records stay, once and in order, and the group continues."""

from pathlib import Path

import pytest

from tests.chaos.workload import Workload
from tests.processes import Server, serve

pytestmark = pytest.mark.chaos
ROUNDS = 4


@pytest.mark.parametrize(
    "settings",
    [{}, {"log.flush.before.ack": "true"}, {"log.segment.bytes": "1048576"}],
    ids=["default", "sync before ack", "small segments"],
)
def test_kill_neither_loses_duplicates_nor_reorders_records(
    settings: dict[str, str], tmp_path: Path
) -> None:
    with serve(tmp_path / "node", settings) as server:
        if server.peer == "kafka" and "log.flush.before.ack" in settings:
            pytest.skip("Apache Kafka does not have this setting")
        server.wait_for_coordinator()
        _make_topic(server, "killed", 3)
        workload = Workload(server.bootstrap, "killed", 3, record_bytes=1000)
        with workload:
            workload.wait_for_progress(300)
            for _ in range(ROUNDS):
                server.kill()
                server.restart()
                workload.wait_for_progress(300)
        verdict = workload.verdict()
        assert verdict.is_clean, f"{verdict}\n{server.logs()}"


def test_kill_while_segments_roll(tmp_path: Path) -> None:
    settings = {"log.segment.bytes": "1048576", "log.index.interval.bytes": "100"}
    with serve(tmp_path / "node", settings) as server:
        server.wait_for_coordinator()
        _make_topic(server, "rolling", 2)
        workload = Workload(server.bootstrap, "rolling", 2, record_bytes=40000)
        with workload:
            for _ in range(3):
                workload.wait_for_progress(150)
                server.kill()
                server.restart()
            workload.wait_for_progress(50)
        verdict = workload.verdict()
        assert verdict.is_clean, f"{verdict}\n{server.logs()}"
        assert len(list(server.data.glob("**/rolling-0/*.log"))) > 3


def _make_topic(server: Server, name: str, partitions: int) -> None:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    with server.client() as client:
        made = client.request("create_topics", 7, {"topics": [topic], "timeout": 10000})
    assert made["topics"][0]["error_code"] == "NONE", made
