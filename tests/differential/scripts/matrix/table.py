"""Calls that need rights, and how a script sends them as users with and without these rights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from riverrun.security.acls import ResourceType
from tests.differential.script import Script
from tests.differential.scripts.matrix.rights import (
    NOBODY,
    TRIED,
    Right,
    Rulebook,
    attempts,
)

Fields = dict[str, Any]
NAMED_BY_SCRIPT = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
UNKNOWN_ID = "00000000-0000-0000-0000-00000000beef"
VERSION_MAX = 99


@dataclass(slots=True)
class Stock:
    """What the calls of a script are about: the topics and ids on the server."""

    script: Script
    topics: dict[str, tuple[str, str]] = field(default_factory=dict)
    producer: tuple[int, int] = (-1, -1)
    token_id: str = ""
    hmac: bytes = b""

    def make_topics(self, *names: str) -> None:
        for name in names:
            full = self.script.topic(name)
            self.topics[name] = (full, self.script.make_topic(full))

    def topic(self, name: str = "orders") -> tuple[str, str]:
        """The name and id of a topic, which may not exist."""
        return self.topics.get(name, (self.script.topic(name), UNKNOWN_ID))

    def name(self, name: str) -> str:
        return self.script.topic(name)

    def resolved(self, right: Right) -> Right:
        """A right with the name that its resource has on the server."""
        if right.kind in NAMED_BY_SCRIPT and right.resource != "*":
            return right._replace(resource=self.script.topic(right.resource))
        if right.kind is ResourceType.DELEGATION_TOKEN:
            return right._replace(resource=self.token_id)
        return right


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCall:
    """A request and the rights that it needs. Requests must be harmless without them."""

    api: str
    label: str = ""
    rights: tuple[Right, ...]
    fields: Callable[[Stock], Fields]
    only: Callable[[Any], Any] | None = None
    since: int = 0
    until: int = VERSION_MAX
    """The first and last version that need these rights."""
    settled: Callable[[Any], bool] | None = None

    def is_sent(self, script: Script) -> bool:
        return self.since <= script.version(self.api) <= self.until


def try_all(stock: Stock, calls: Sequence[GuardedCall], *, listener: str = "") -> None:
    """Send the calls as a user without rights, and as users that lack, have or are denied them.
    The listener is that for clients, or `@controller`."""
    script = stock.script
    book = Rulebook(script)
    sent = [call for call in calls if call.is_sent(script)]
    for rights, same in groupby(sent, key=lambda call: call.rights):
        cases = list(attempts([stock.resolved(right) for right in rights]))
        users = dict(zip(_users(len(cases)), cases, strict=True))
        book.replace({user: rules for user, (_, rules) in users.items()})
        for call in same:
            for user, (attempt, _) in users.items():
                label = f"{call.label}, {attempt}" if call.label else attempt
                script.request(
                    label,
                    call.api,
                    call.fields(stock),
                    on=f"{user}{listener}",
                    only=call.only,
                    settled=call.settled,
                )
    book.replace({})


def _users(count: int) -> list[str]:
    """The users of so many attempts. The last one, with all rights, is always the same: a
    transaction belongs to one connection."""
    *others, last = TRIED
    return [NOBODY, *others[: count - 2], last]
