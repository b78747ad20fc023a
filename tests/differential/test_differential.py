"""The responses of riverrun equal those that Apache Kafka sent to the same requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.compare import mismatches
from tests.differential.differences import DIFFERENCES, Difference
from tests.differential.run import RECORDED, SETTINGS, load, prepare, run
from tests.differential.script import ERAS
from tests.differential.scripts import SCRIPTS
from tests.processes import Server, serve

SHOWN_MAX = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("differential"), SETTINGS) as running:
        prepare(running.address)
        yield running


@pytest.fixture(scope="module")
def seen() -> dict[Difference, int]:
    """The number of occurrences of each known difference, filled in by the tests."""
    return {}


@pytest.mark.parametrize("name", SCRIPTS)
def test_responses_equal_those_of_kafka(
    name: str, server: Server, seen: dict[Difference, int]
) -> None:
    recorded = load(name)
    unexpected = []
    for era in ERAS:
        for mismatch in mismatches(name, era, recorded[era], run(server.address, name, era)):
            known = next((row for row in DIFFERENCES if row.covers(mismatch)), None)
            if known is None:
                unexpected.append(str(mismatch))
            else:
                seen[known] = seen.get(known, 0) + 1
    shown = "\n".join(unexpected[:SHOWN_MAX])
    assert not unexpected, f"{len(unexpected)} fields differ from Kafka's:\n{shown}"


def test_every_known_difference_still_exists(
    request: pytest.FixtureRequest, seen: dict[Difference, int]
) -> None:
    name = test_responses_equal_those_of_kafka.__name__
    ran = sum(name in item.nodeid for item in request.session.items)
    if ran < len(SCRIPTS):
        pytest.skip("only some of the scripts ran")
    stale = [row.reason for row in DIFFERENCES if row not in seen]
    assert not stale, f"no longer different, take it off the list: {stale}"


def test_every_recording_has_a_script() -> None:
    assert {Path(path).stem for path in RECORDED.glob("*.json")} == set(SCRIPTS)
