"""Changes of settings, as a response shows them."""

from __future__ import annotations

from riverrun.admin.cluster.configs import BrokerSetting, Source
from riverrun.console.configs import ConfigBody, assignments, differences, items_of


def setting(
    name: str, *, is_sensitive: bool = False, source: Source = Source.DEFAULT
) -> BrokerSetting:
    return BrokerSetting(
        name=name,
        value=None if is_sensitive else "1",
        source=source,
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


def test_only_settings_of_the_topic_itself_can_be_reset() -> None:
    """The others come from the nodes, and a reset of the topic would change nothing."""
    rows = [setting(source.name, source=source) for source in Source]
    assert [each.name for each in items_of(rows, Source.TOPIC).items if each.is_own] == ["TOPIC"]
    assert [each.name for each in items_of(rows, Source.NODE).items if each.is_own] == ["NODE"]
