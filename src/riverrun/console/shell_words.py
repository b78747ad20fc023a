"""Words of a command line that people copy into a terminal.

A group or a file may have a name with control characters, which its author chose. Some terminals
take an escape sequence in pasted text for the end of the paste, and then run the rest. Marks that
change the direction of writing show a different command than the shell reads. Words with such
characters are written with escapes, as bash, zsh and newer POSIX shells read them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def joined(words: Iterable[str]) -> str:
    """A command line."""
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    return shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'"


def _escaped(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return "".join(f"\\{byte:03o}" for byte in letter.encode("utf-8", "surrogateescape"))
