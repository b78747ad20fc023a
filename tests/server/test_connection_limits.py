"""Limits of connections: per node, listener and address."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.model.settings import SettingError
from riverrun.server.network.connection_limits import (
    ConnectionLimits,
    check_listener_limits,
)
from riverrun.server.network.settings import NetworkSettings, parse_overrides

PREFIX = "listener.name.clients."


def limits(
    texts: dict[str, str] | None = None, rate: float | None = None, **settings: Any
) -> ConnectionLimits:
    return ConnectionLimits(NetworkSettings(**settings), texts or {}, ("INTERNAL",), lambda _: rate)


def refusal(
    made: ConnectionLimits, listener: str = "CLIENTS", *, open_: int = 0, now: float = 0.0
) -> str | None:
    return made.check(
        listener, "10.0.0.1", on_node=open_, on_listener=open_, from_address=0, now=now
    ).refusal


def test_listener_between_brokers_is_protected_from_the_limit_of_the_node() -> None:
    made = limits(connections_max=5)
    assert refusal(made, open_=5) == "max_connections"
    assert refusal(made, "INTERNAL", open_=5) is None


def test_listener_has_a_limit_of_its_own() -> None:
    made = limits({PREFIX + "max.connections": "3", "listener.name.internal.max.connections": "4"})
    assert refusal(made, open_=2) is None
    assert refusal(made, open_=3) == "max_connections"
    assert refusal(made, "INTERNAL", open_=3) is None
    assert refusal(made, "INTERNAL", open_=4) == "max_connections"


def test_changed_limit_holds_for_the_next_connection() -> None:
    made = limits({PREFIX + "max.connections": "3"})
    made.configure(NetworkSettings(), {PREFIX + "max.connections": "9"})
    assert refusal(made, open_=3) is None


def test_address_above_its_quota_is_refused() -> None:
    made = limits(rate=1.0)
    assert [refusal(made) for _ in range(12)] == [None] * 11 + ["connection_creation_rate"]
    assert refusal(made, "INTERNAL") is None
    assert refusal(made, now=1.5) is None


def test_listener_has_a_rate_of_its_own() -> None:
    made = limits({PREFIX + "max.connection.creation.rate": "1"}, connection_rate_max=100)
    arrivals = [
        made.check("CLIENTS", "10.0.0.1", on_node=0, on_listener=0, from_address=0, now=0.0)
        for _ in range(13)
    ]
    assert [round(arrival.seconds) for arrival in arrivals] == [0] * 11 + [1, 2]


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "10.0.0.1:x", ":5", "10.0.0.1:²", "10.0.0.1:" + "9" * 5000]
)
def test_bad_override_is_refused(text: str) -> None:
    with pytest.raises(SettingError):
        parse_overrides(text)


def test_bad_limit_of_a_listener_is_refused() -> None:
    with pytest.raises(SettingError):
        check_listener_limits({PREFIX + "max.connections": "many"})
    with pytest.raises(SettingError):
        check_listener_limits({PREFIX + "max.connections": "²"})
    check_listener_limits({PREFIX + "max.connections": "5"})
