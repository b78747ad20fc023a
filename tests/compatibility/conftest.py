"""One real server for all clients; PEER=kafka runs the same tests against Apache Kafka."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.compatibility.apache import ApacheTools
from tests.processes import Server, serve, until

MakeTopic = Callable[..., str]
SETTINGS = {"log.cleaner.backoff.ms": "200"}


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("compatibility"), SETTINGS) as running:
        running.wait_for_coordinator()
        yield running


@pytest.fixture(scope="package")
def numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def make_topic(
    server: Server, numbers: Iterator[int], request: pytest.FixtureRequest
) -> Iterator[MakeTopic]:
    """Creates topics with unique names: make_topic(partitions=3, configs={...})."""
    with server.client() as client:

        def make(*, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
            name = f"{request.node.originalname}-{next(numbers)}"
            rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
            topic: dict[str, Any] = {"name": name, "num_partitions": partitions}
            topic |= {"replication_factor": 1, "configs": rows}
            made = client.request("create_topics", 7, {"topics": [topic], "timeout": 10000})
            assert made["topics"][0]["error_code"] == "NONE", made
            wanted = {"topics": [{"name": name}], "allow_auto_topic_creation": False}

            def is_led() -> bool:
                rows = client.request("metadata", 12, wanted)["topics"][0]["partitions"]
                return [row["error_code"] for row in rows] == ["NONE"] * partitions

            until(is_led, seconds=15, what=f"topic {name} has leaders")
            return name

        yield make


@pytest.fixture
def make_name(numbers: Iterator[int], request: pytest.FixtureRequest) -> Callable[[], str]:
    return lambda: f"{request.node.originalname}-{next(numbers)}"


@pytest.fixture(scope="package")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheTools]:
    """One JVM for all tests, including those of clusters."""
    opened = ApacheTools(tmp_path_factory.mktemp("tools"))
    yield opened
    opened.close()
