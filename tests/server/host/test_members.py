"""The brokers of a host: ids, ports, directories, roles, seeds and racks."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from riverrun.model.setting_names import flattened
from riverrun.model.settings import SettingError
from riverrun.server.host.members import HostMember, members_of
from riverrun.server.host.settings import HostSettings

UNIT = {
    "node.id": "2",
    "log.dirs": "/d1,/d2",
    "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093",
    "advertised.listeners": "PLAINTEXT://host2:9092,CONTROLLER://host2:9093",
    "http.listener": "0.0.0.0:9094",
    "seed.nodes": "host1:9092,host3:9092",
    "processes": "3",
}


def derived(count: int = 3, **texts: str) -> tuple[HostMember, ...]:
    given = {name.replace("_", "."): text for name, text in texts.items()}
    return members_of(UNIT | given, count, {})


def refused(count: int = 3, **texts: str) -> str:
    with pytest.raises(SettingError) as caught:
        derived(count, **texts)
    return str(caught.value)


def test_the_example_of_the_operations_guide_is_valid() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    [example] = [
        block
        for block in re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
        if "processes" in block
    ]
    texts = {name: str(value) for name, value in flattened(tomllib.loads(example)).items()}
    members = members_of(texts, HostSettings.from_texts(texts).count(1), {})
    directories = [os.path.dirname(one.directory) for one in members]
    assert [directories.count(f"/disk{number}/riverrun") for number in (1, 2, 3, 4)] == [6] * 4
    assert (members[-1].id, members[-1].settings.advertised()[0].port) == (23001, 9322)


def test_ids_ports_and_directories_follow_from_the_first_process() -> None:
    first, second, third = derived()
    assert [one.id for one in (first, second, third)] == [2, 1002, 2002]
    directories = [one.directory for one in (first, second, third)]
    assert directories == ["/d1/node-2", "/d2/node-1002", "/d1/node-2002"]
    assert first.texts["listeners"] == UNIT["listeners"]
    assert third.texts["listeners"] == "PLAINTEXT://0.0.0.0:9112"
    assert third.texts["advertised.listeners"] == "PLAINTEXT://host2:9112"
    assert third.texts["http.listener"] == "0.0.0.0:9114"
    assert third.settings.data_directory == "/d1/node-2002"


def test_only_the_first_process_votes_and_the_others_find_it() -> None:
    first, second, _ = derived()
    assert first.settings.formation.is_controller
    assert first.texts["seed.nodes"] == UNIT["seed.nodes"]
    assert second.settings.formation.roles == ("broker",)
    assert second.texts["seed.nodes"] == "host2:9092,host1:9092,host3:9092"


def test_a_unit_of_brokers_joins_by_the_given_seeds() -> None:
    for one in derived(process_roles="broker", listeners="PLAINTEXT://0.0.0.0:9092"):
        assert one.settings.formation.roles == ("broker",)
        assert one.texts["seed.nodes"] == UNIT["seed.nodes"]


def test_rack_is_the_host_unless_it_is_given() -> None:
    assert {one.texts["broker.rack"] for one in derived()} == {"host2"}
    assert {one.texts["broker.rack"] for one in derived(1)} == {"host2"}
    assert {one.texts["broker.rack"] for one in derived(broker_rack="zone-a")} == {"zone-a"}


def test_other_hosts_get_other_ids_whatever_their_size() -> None:
    ids = [one.id for host in ("1", "2", "3") for one in derived(40, node_id=host)]
    assert len(set(ids)) == 120


def test_brokers_with_data_stay_on_their_disk() -> None:
    members = members_of(UNIT, 4, {2: "/d1", 1002: "/d1"})
    directories = [one.directory for one in members]
    assert directories == ["/d1/node-2", "/d1/node-1002", "/d2/node-2002", "/d2/node-3002"]


def test_ports_that_would_collide_are_refused() -> None:
    listeners = "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9102"
    message = refused(listeners=listeners, advertised_listeners="PLAINTEXT://host2:9092")
    assert "nodes 2 and 1002 would both use port 9102" in message
    assert "do not differ by a multiple of 10" in message
    # The same port of other addresses of the host is free.
    apart = "PLAINTEXT://10.0.0.1:9092,OTHER://10.0.0.2:9102,CONTROLLER://10.0.0.1:9093"
    plain = "OTHER:PLAINTEXT"
    assert len(derived(listeners=apart, listener_security_protocol_map=plain)) == 3


def test_ports_are_named_and_within_range() -> None:
    high = refused(100, listeners="PLAINTEXT://h:65000,CONTROLLER://h:9093")
    assert "100 processes need ports up to 65990; choose a lower port" in high
    assert "name one" in refused(listeners="PLAINTEXT://h:0,CONTROLLER://h:9093")


def test_ids_of_a_unit_are_below_a_thousand() -> None:
    assert "number the hosts 1, 2, 3" in refused(node_id="1000")


def test_a_controller_is_no_unit() -> None:
    message = refused(process_roles="controller", listeners="CONTROLLER://h:9093")
    assert "start a controller without processes" in message


def test_a_directory_is_named_once() -> None:
    assert "names /d1 twice" in refused(log_dirs="/d1,/d1/")


def test_invalid_settings_of_a_process_are_reported() -> None:
    assert "unknown setting" in refused(num_partition="3")


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", "257"])
def test_number_of_processes_is_checked(text: str) -> None:
    with pytest.raises(SettingError, match="a number from 1 to 256, or auto"):
        HostSettings.from_texts({"processes": text}).count(8)


def test_auto_is_the_number_of_cores() -> None:
    assert HostSettings.from_texts({"processes": "auto"}).count(8) == 8
    assert HostSettings.from_texts({"processes": "3"}).count(8) == 3
