"""Finds the lines with commands of riverrun in a page, and compares them with the program."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^    (riverrun .*)$", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
# Languages of blocks that are no commands.
OTHER = ("text", "python", "toml", "json", "yaml", "properties", "java")
SEPARATORS = ("|", "||", "&&", ";", "&")
ASSIGNMENT = re.compile(r"[A-Z_]+=")
PLACEHOLDER = re.compile(r"\.\.\.|…|\[?[A-Z][A-Z-]+\]?")


class CommandLine(NamedTuple):
    """The words after `riverrun`."""

    text: str
    words: tuple[str, ...]


def command_lines(page: str) -> Iterator[CommandLine]:
    """The commands in the blocks and in the code of a page."""
    blocks = list(FENCE.finditer(page))
    for block in blocks:
        if block[2] not in OTHER:
            for line in block[3].replace("\\\n", " ").splitlines():
                yield from _commands(line.strip().removeprefix("$ "))
    prose = FENCE.sub("", page)
    for found in INDENTED.finditer(prose):
        yield from _commands(re.split(r"\s{3,}", found[1])[0])  # the rest explains it
    for found in INLINE.finditer(prose):
        text = found[1].replace("\\|", "|").strip()
        if text.startswith("riverrun "):
            for each in _alternatives(text):
                yield from _commands(each)


def _alternatives(text: str) -> Iterator[str]:
    """`generate prometheus|grafana` names two commands."""
    found = re.search(r"(?<=\s)([a-z-]+(?:\|[a-z-]+)+)(?=\s|$)", text)
    for choice in found[1].split("|") if found else ("",):
        yield text.replace(found[1], choice, 1) if found else text


def _commands(line: str) -> Iterator[CommandLine]:
    """The calls of riverrun in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe of prose
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in SEPARATORS:
            command.append(word)
            continue
        while command and (ASSIGNMENT.match(command[0]) or command[0] == "exec"):
            del command[0]
        if command and command[0].rsplit("/", 1)[-1] == "riverrun":
            yield CommandLine(line, tuple(_arguments(command[1:])))
        command = []


def _arguments(words: list[str]) -> Iterator[str]:
    """The words up to a redirection or a comment."""
    for word in words:
        if word.startswith(("<", ">")):
            return
        if not word.isdigit() or len(word) > 1 or words[-1] != word:
            yield word.strip("[]") if word.startswith("[-") else word


def mistake(root: Any, line: CommandLine) -> str | None:
    """What is wrong with a command line, or None."""
    command, words = root, list(line.words)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if PLACEHOLDER.fullmatch(words[0]):
            return None  # `riverrun COMMAND --help`
        if words[0] not in command.commands:
            return f"there is no command {words[0]}"
        command = command.commands[words.pop(0)]
    context = command.context_class(command, info_name="riverrun")
    options = {
        name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)
    }
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("-") or name == "-" or name[1:2].isdigit() or word == "--":
            continue
        if name not in options and name not in ("--help", "-h"):
            return f"there is no option {name}"
    return None
