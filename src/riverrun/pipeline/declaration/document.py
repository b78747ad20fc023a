"""TOML and YAML documents with the line of each field, for error messages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from riverrun.pipeline.errors import DeclarationError, Problem

FieldPath = tuple[str, ...]

_HEADER = re.compile(r"^\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    file: str
    values: Mapping[str, object]
    lines: Mapping[FieldPath, int]

    def line_of(self, path: FieldPath) -> int | None:
        """The line of a field, or of the nearest enclosing field."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return None


def read_document(path: Path) -> Document:
    """Raises DeclarationError if the file does not exist or is malformed."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _broken(path, None, reason, "create one with `riverrun pipeline init`") from error
    if path.suffix in (".yaml", ".yml"):
        return _read_yaml(path, text)
    if path.suffix == ".toml":
        return _read_toml(path, text)
    raise _broken(path, None, "is neither TOML nor YAML", "rename it to *.toml, *.yaml or *.yml")


def _broken(path: Path, line: int | None, text: str, remedy: str) -> DeclarationError:
    return DeclarationError(str(path), [Problem(field="", line=line, text=text, remedy=remedy)])


def _read_toml(path: Path, text: str) -> Document:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found.group(1)) if found else None
        raise _broken(path, line, f"invalid TOML: {error}", "correct the line") from error
    return Document(file=str(path), values=values, lines=_toml_lines(text))


def _toml_lines(text: str) -> dict[FieldPath, int]:
    """tomllib reports no lines, so headers and keys are found by regular expressions."""
    lines: dict[FieldPath, int] = {}
    section: FieldPath = ()
    closing: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if closing is not None:
            if closing in line:
                closing = None
            continue
        header = _HEADER.match(line)
        key = _KEY.match(line)
        if header:
            section = _parts(header.group(1))
            lines.setdefault(section, number)
        elif key:
            lines.setdefault((*section, *_parts(key.group(1))), number)
        for mark in ('"""', "'''"):
            if line.count(mark) % 2:
                closing = mark
    return lines


def _parts(text: str) -> FieldPath:
    return tuple(part.strip("\"'") for part in _PART.findall(text))


def _read_yaml(path: Path, text: str) -> Document:
    try:
        import yaml
    except ImportError as error:
        raise _broken(path, None, "YAML needs PyYAML", "pip install pyyaml, or use TOML") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # An invalid date is a ValueError, an anchor inside itself a RecursionError.
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error)
        raise _broken(path, line, f"invalid YAML: {problem}", "correct the line") from error
    if _is_recursive(values):
        raise _broken(path, None, "invalid YAML: an anchor refers to itself", "remove the anchor")
    if not isinstance(values, dict):
        raise _broken(path, 1, "has no fields", "see `riverrun pipeline init` for an example")
    lines: dict[FieldPath, int] = {}
    seen: dict[int, None] = {}

    def visit(node: object, path: FieldPath) -> None:
        # Anchors make the tree a graph with possibly exponentially many paths.
        if isinstance(node, yaml.MappingNode) and id(node) not in seen:
            seen[id(node)] = None
            for key, value in node.value:
                inner = (*path, str(key.value))
                lines[inner] = key.start_mark.line + 1
                visit(value, inner)

    visit(node, ())
    return Document(file=str(path), values=values, lines=lines)


def _is_recursive(values: object) -> bool:
    """Whether a value contains itself. Each value is visited once."""
    done: dict[int, None] = {}

    def visit(value: object, above: dict[int, None]) -> bool:
        if not isinstance(value, dict | list):
            return False
        if id(value) in above:
            return True
        if id(value) in done:
            return False
        inner = value.values() if isinstance(value, dict) else value
        found = any(visit(one, {**above, id(value): None}) for one in inner)
        done[id(value)] = None
        return found

    return visit(values, {})
