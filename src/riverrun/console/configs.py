"""Settings of topics and nodes: their form in the REST API, and changes to them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from riverrun.admin.cluster.configs import BrokerSetting, Source, source_in_words
from riverrun.console.problems import problem
from riverrun.console.routing import ChangeResult


class ConfigItem(Struct, kw_only=True):
    """A setting with its effective value."""

    name: str
    value: str | None
    """Null if there is none, or if it is secret."""
    source: str
    is_default: bool
    is_own: bool
    """Whether it was set on this topic or node at run time, so that it can be reset here."""
    is_read_only: bool
    """Whether it can only be changed in the file of a node."""
    is_sensitive: bool
    doc: str | None
    default: str | None = None
    type: str = "string"


class ConfigList(Struct, kw_only=True):
    """All settings of a topic or of a node, by name."""

    items: list[ConfigItem]


class ConfigBody(Struct, kw_only=True):
    """Settings to change. ``reset`` names those that get the value of the next source again."""

    set: dict[str, str] = field(default_factory=dict)
    reset: list[str] = field(default_factory=list)
    dry_run: bool = False

    def values(self) -> dict[str, str | None]:
        """None for a setting to reset. Raises ``ApiProblem``."""
        both = [name for name in self.reset if name in self.set]
        if both:
            raise problem("invalid", f"{both[0]} cannot be set and reset at once.")
        if not self.set and not self.reset:
            raise problem("invalid", "No setting is named.", "Name one in set or in reset.")
        return {**self.set, **dict.fromkeys(self.reset)}


class ConfigChange(ChangeResult, kw_only=True):
    """The old and the new values. A new value is null where a setting is reset."""

    changes: list[ConfigDifference]


class ConfigDifference(Struct, kw_only=True):
    name: str
    before: str | None
    after: str | None


def items_of(rows: Sequence[BrokerSetting], own: Source) -> ConfigList:
    """``own`` is the source of values that were set on the topic or node itself."""
    return ConfigList(
        items=[
            ConfigItem(
                name=row.name,
                value=None if row.is_sensitive else row.value,
                source=source_in_words(row.source),
                is_default=row.source == Source.DEFAULT,
                is_own=row.source == own,
                is_read_only=row.is_read_only,
                is_sensitive=row.is_sensitive,
                doc=row.documentation,
                default=row.default,
                type=row.type,
            )
            for row in sorted(rows, key=lambda row: row.name)
        ]
    )


def differences(rows: Sequence[BrokerSetting], body: ConfigBody) -> list[ConfigDifference]:
    known = {row.name: row for row in rows}
    found = []
    for name, value in body.values().items():
        row = known.get(name)
        shown = row is not None and not row.is_sensitive
        before = row.value if row is not None and shown else None
        found.append(ConfigDifference(name=name, before=before, after=value if shown else None))
    return found


def assignments(rows: Sequence[BrokerSetting], body: ConfigBody) -> list[str]:
    """The settings for a command. VALUE stands for a secret, and for the value of a setting that is
    not known and may be one."""
    shown = {row.name for row in rows if not row.is_sensitive}
    return [f"{name}={value if name in shown else 'VALUE'}" for name, value in body.set.items()]
