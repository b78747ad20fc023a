r"""The format of Java's properties files, in which Kafka's settings are written.

``name=value``, ``name: value`` and ``name value`` mean the same. A line that begins with ``#`` or
``!`` is a comment. A backslash at the end continues a line; elsewhere it escapes a character, also
as ``\t``, ``\n``, ``\r``, ``\f`` and ``\u`` with four digits. The last line with a name wins. Space
around a value is removed, because Kafka does so when it reads a setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_SPACE: Final = " \t\f"
_NAME: Final = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Parse the text of a properties file."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        name = _NAME.match(line)
        assert name is not None, "the pattern matches the empty text"
        separator = _SEPARATOR.match(line, name.end())
        assert separator is not None, "the pattern matches the empty text"
        found[_unescaped(name[0])] = _unescaped(line[separator.end() :]).strip()
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, joined where they are continued."""
    pending = ""
    is_continued = False
    for raw in _LINE_END.split(text):
        line = raw.lstrip(_SPACE)
        if not is_continued and (not line or line.startswith(("#", "!"))):
            continue
        line = pending + line
        backslashes = len(line) - len(line.rstrip("\\"))
        is_continued = backslashes % 2 == 1
        if is_continued:
            pending = line[:-1]
            continue
        pending = ""
        if line:
            yield line
    if pending:
        yield pending


def _unescaped(text: str) -> str:
    def meaning(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPED.get(match[2], match[2])

    return _ESCAPE.sub(meaning, text)
