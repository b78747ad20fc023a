"""Changes of settings, as a response shows them."""

from __future__ import annotations

from riverrun.admin.cluster.configs import BrokerSetting
from riverrun.console.configs import ConfigBody, assignments, differences


def setting(name: str, *, is_sensitive: bool) -> BrokerSetting:
    return BrokerSetting(
        name=name,
        value=None if is_sensitive else "1",
        source=5,
        default=None,
        is_read_only=False,
        is_sensitive=is_sensitive,
        type="string",
        documentation=None,
        sources=frozenset(),
        nodes=(1,),
    )


def test_secrets_are_not_in_the_command_or_the_difference() -> None:
    rows = [
        setting("log.segment.bytes", is_sensitive=False),
        setting("ssl.key.password", is_sensitive=True),
    ]
    other = "listener.name.a.ssl.key.password"
    body = ConfigBody(set={"log.segment.bytes": "2", "ssl.key.password": "s3cret", other: "s3cret"})
    assert assignments(rows, body) == [
        "log.segment.bytes=2",
        "ssl.key.password=VALUE",
        f"{other}=VALUE",
    ]
    assert [one.after for one in differences(rows, body)] == ["2", None, None]
