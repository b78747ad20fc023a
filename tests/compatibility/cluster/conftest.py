"""Three real nodes for all clients and tools."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.clusters import Cluster, serve_three
from tests.compatibility.conftest import MakeTopic
from tests.processes import until

# Small enough that every node writes snapshots of its metadata while the tests run.
SETTINGS = {
    "metadata.log.max.record.bytes.between.snapshots": "4000",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
}


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_three(tmp_path_factory.mktemp("cluster"), SETTINGS) as running:
        running.wait_healthy()
        yield running


@pytest.fixture(scope="package")
def names() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def make_name(names: Iterator[int], request: pytest.FixtureRequest) -> Callable[[], str]:
    return lambda: f"{request.node.originalname}-{next(names)}"


@pytest.fixture
def make_topic(cluster: Cluster, make_name: Callable[[], str]) -> MakeTopic:
    """Creates topics with three replicas and waits until every node has their leaders."""

    def make(*, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = make_name()
        rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 3}
        wanted = {"topics": [{**topic, "configs": rows}], "timeout": 30000}
        made = cluster.request("create_topics", 7, wanted)
        assert made["topics"][0]["error_code"] == "NONE", made
        wanted = {"topics": [{"name": name}], "allow_auto_topic_creation": False}

        def is_known() -> bool:
            for node in cluster.nodes.values():
                with node.client() as client:
                    rows = client.request("metadata", 12, wanted)["topics"][0]["partitions"]
                if [row["error_code"] for row in rows] != ["NONE"] * partitions:
                    return False
            return True

        until(is_known, seconds=30, what=f"every node has the leaders of {name}")
        return name

    return make
