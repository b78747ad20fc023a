"""The grammar of ``sasl.jaas.config``, in which administrators of Kafka keep users and passwords.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="node" password="secret" user_alice="alice-secret";

The name of the module decides nothing here: the mechanism is given by other settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

USER_PREFIX: Final = "user_"
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""\s+|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<word>[^\s="';]+)|(?P<mark>[=;])"""
)


class JaasError(ValueError):
    """The text is not a JAAS configuration. The message contains no part of it: it has secrets."""


class JaasEntry(Struct, frozen=True, kw_only=True):
    module: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def username(self) -> str | None:
        return self.options.get("username")

    @property
    def password(self) -> str | None:
        return self.options.get("password")

    def users(self) -> dict[str, str]:
        """Passwords by user, of the options ``user_NAME``."""
        return {
            name.removeprefix(USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(USER_PREFIX)
        }


def parse_jaas(text: str) -> JaasEntry:
    """Parse one entry. Raises ``JaasError``."""
    words = _tokens(text)
    if len(words) < 3 or words[-1] != ";":
        raise JaasError('expected: MODULE required NAME="VALUE" ...;')
    module, flag, *rest = words[:-1]
    if flag.lower() not in _FLAGS:
        raise JaasError("the word after the module must be `required`")
    if ";" in rest:
        raise JaasError("only one login module is supported")
    if len(rest) % 3 or any(rest[at] != "=" for at in range(1, len(rest), 3)):
        raise JaasError('options must be NAME="VALUE"')
    options = {rest[at]: rest[at + 2] for at in range(0, len(rest), 3)}
    return JaasEntry(module=module, options=options)


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise JaasError("a quotation mark is not closed, or a character is not allowed")
        at = match.end()
        if match["quoted"] is not None:
            found.append(re.sub(r"\\(.)", r"\1", match["quoted"][1:-1]))
        elif match["word"] is not None or match["mark"] is not None:
            found.append(match[0])
    return found


def quoted(value: str) -> str:
    """A value as it is written in a JAAS configuration."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
