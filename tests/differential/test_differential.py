"""The responses of riverrun equal those that Apache Kafka sent to the same requests."""

from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.index import api_key_map

from tests.differential.compare import mismatches
from tests.differential.differences import DIFFERENCES, Difference
from tests.differential.run import RECORDED, SETTINGS, load, prepare, run
from tests.differential.script import ERAS
from tests.differential.scripts import SCRIPTS, SECURED, matrix
from tests.differential.secured import controller_address, log_in, login_address, serve_secured
from tests.plain_client import PlainClient
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


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("secured") / "node"
    with serve_secured(folder, SETTINGS, "riverrun") as running:
        prepare(running.address)
        yield running


@pytest.mark.parametrize("name", [*SCRIPTS, *SECURED])
def test_responses_equal_those_of_kafka(
    name: str, request: pytest.FixtureRequest, seen: dict[Difference, int]
) -> None:
    server: Server = request.getfixturevalue("secured" if name in SECURED else "server")
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
    if ran < len(SCRIPTS) + len(SECURED):
        pytest.skip("only some of the scripts ran")
    stale = [row.reason for row in DIFFERENCES if row not in seen]
    assert not stale, f"no longer different, take it off the list: {stale}"


def test_every_recording_has_a_script() -> None:
    assert {path.stem for path in RECORDED.glob("*.json")} == {*SCRIPTS, *SECURED}


def test_every_api_for_clients_is_in_the_matrix_of_rights(secured: Server) -> None:
    served = _served(login_address(secured.address))
    assert served == matrix.apis_in_matrix() | {*matrix.NEEDS_NO_RIGHT}


def test_every_api_of_controllers_is_in_the_matrix_of_rights(secured: Server) -> None:
    served = _served(controller_address(secured.address))
    assert served == matrix.apis_of_controllers() | {*matrix.NEEDS_NO_RIGHT}


def _served(address: tuple[str, int]) -> set[str]:
    with PlainClient(address) as client:
        log_in(client, "eve")
        response = client.request("api_versions", 0, {})
    return {api_key_map[row["api_key"]] for row in response["api_keys"]}


@pytest.mark.parametrize("name", matrix.TABLES)
@pytest.mark.parametrize("era", ERAS)
def test_every_missing_right_changes_the_response_of_kafka(name: str, era: str) -> None:
    """Otherwise the matrix would not show that the right is needed."""
    needless = []
    for attempts in _calls(load(name)[era]):
        *refused, given = attempts
        api = given["ask"].partition(" ")[0]
        if api not in matrix.SAME_FOR_ALL:
            needless += [row["ask"] for row in refused if row["answer"] == given["answer"]]
    assert not needless


def _calls(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The attempts of each call, of which the first is without any right."""
    calls: list[list[dict[str, Any]]] = []
    for row in rows:
        if row["ask"].endswith(matrix.NO_RIGHT):
            calls.append([])
        if calls:  # before, a script prepares its calls
            calls[-1].append(row)
    return calls
