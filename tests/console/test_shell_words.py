"""Commands that the console shows are safe to copy into a terminal."""

from __future__ import annotations

import subprocess

import pytest

from riverrun.console.clusters import ClusterEntry, ClusterSettings
from riverrun.console.shell_words import joined, quoted

PASTED = "x\x1b[201~\nrm -rf ~\n"
"""Ends the paste in some terminals, which then run the rest."""
WORDS = [
    "plain", "", "it's", "a b", "$(id)", "`id`", "a;b", "\\", "grüße", PASTED, "\t", "\x7f",
    "\x9b31m", "'\x01'", "\u202emoc", "\u2066a\u2069", "\ufeff", "\\n\n",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_shell_reads_the_same_word(word: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf %s {quoted(word)}"], capture_output=True, timeout=30, check=True
    )
    assert done.stdout == word.encode()


@pytest.mark.parametrize("word", WORDS)
def test_a_command_has_no_characters_that_cannot_be_seen(word: str) -> None:
    text = joined(["riverrun", "groups", "delete", word])
    assert all(letter.isprintable() for letter in text), repr(text)


def test_commands_of_a_cluster_are_quoted() -> None:
    entry = ClusterEntry(ClusterSettings(name="main", bootstrap="127.0.0.1:9092"))
    shown = entry.command("groups", "delete", PASTED)
    assert shown == r"riverrun groups delete $'x\033[201~\012rm -rf ~\012'"
