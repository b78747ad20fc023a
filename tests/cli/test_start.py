"""`riverrun start`: one address is enough to say where a node is."""

import pytest
import typer

from riverrun.cli.start import reached_at
from riverrun.server.settings import NodeSettings


def places(address: str, **texts: str) -> dict[str, str]:
    given = {name.replace("_", "."): text for name, text in texts.items()}
    found = reached_at(address, given)
    NodeSettings.from_texts(found)
    return found


def test_a_name_is_told_to_others_and_listened_for_everywhere() -> None:
    found = places("node1:9092")
    assert found["listeners"] == "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093"
    told = "PLAINTEXT://node1:9092,CONTROLLER://node1:9093"
    assert found["advertised.listeners"] == told
    assert found["http.listener"] == "0.0.0.0:9094"


def test_the_loopback_is_not_left() -> None:
    found = places("127.0.0.1:22010")
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:22010,CONTROLLER://127.0.0.1:22011"
    assert found["http.listener"] == "127.0.0.1:22012"


def test_each_role_has_its_own_listener() -> None:
    assert places("node1:9092", process_roles="broker")["listeners"] == "PLAINTEXT://0.0.0.0:9092"
    controller = places("node1:9093", process_roles="controller")
    assert controller["listeners"] == "CONTROLLER://0.0.0.0:9093"
    assert controller["advertised.listeners"] == "CONTROLLER://node1:9093"


def test_listeners_that_are_given_stay() -> None:
    listeners = "PLAINTEXT://0.0.0.0:7000,CONTROLLER://0.0.0.0:7100"
    found = places("node1:9092", listeners=listeners)
    assert found["listeners"] == listeners
    assert found["advertised.listeners"] == "PLAINTEXT://node1:9092"
    controller = NodeSettings.from_texts(found).controller_advertised()
    assert controller is not None
    assert (controller.host, controller.port) == ("node1", 7100)


@pytest.mark.parametrize("address", ["node1", "node1:99999", "a:1,b:2"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(typer.Exit) as end:
        reached_at(address, {})
    assert end.value.exit_code == 2
