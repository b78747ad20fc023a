"""What can be said of SQL and of declared columns without Spark, which takes seconds to start.

Only what is surely wrong is said; the rest is left to Spark, which ends the run with its reason.
"""

from __future__ import annotations

import difflib
import re

_NO_CODE = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*" | --[^\n]* | /\*.*?\*/""", re.DOTALL | re.VERBOSE
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|[^\s\w]""")
ORIGIN = ("_topic", "_partition", "_offset", "_timestamp")
"""Columns of rows from topics that say where the record stood."""
QUERIES = ("select", "with", "from", "values", "table", "map", "reduce")
"""Words that a query may begin with."""
TYPES = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float",
    "real", "double", "date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "string",
    "character", "char", "varchar", "binary", "decimal", "dec", "numeric", "void", "interval",
    "variant", "array", "map", "struct", "object", "geometry", "geography",
)  # fmt: skip


def names_in(sql: str) -> list[str]:
    """All words of a query that may be names, each once; literals and comments are none."""
    return list(dict.fromkeys(_WORD.findall(_NO_CODE.sub(" ", sql))))


def check_query(sql: str) -> None:
    """ValueError for a text that does not begin as queries do."""
    code = _NO_CODE.sub(" ", sql).strip().lstrip("( \n\t")
    found = _WORD.match(code)
    if found is None or found.group().lower() not in QUERIES:
        word = code.split()[0] if code else sql
        raise ValueError(f"{word!r} begins no query{_alike(word, QUERIES)}")


def columns_of(ddl: str) -> list[str]:
    """The names of declared columns, as ``id BIGINT, name STRING``; ValueError for a type that
    Spark does not have.
    """
    tokens = _TOKEN.findall(ddl)
    if [token.lower() for token in tokens[:2]] == ["struct", "<"]:
        tokens = tokens[2:-1]
    return _Columns(tokens).columns()


class _Columns:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def columns(self) -> list[str]:
        """Up to the end of the text, or of the struct."""
        names: list[str] = []
        while self._next() not in ("", ">"):
            names.append(self._take().strip("`").replace("``", "`"))
            if self._next() == ":":
                self._take()
            self._type()
            if self._next() == ",":
                self._take()
        return names

    def _type(self) -> None:
        name = self._take()
        if name.lower() not in TYPES:
            raise ValueError(f"{name!r} is no type{_alike(name, TYPES)}")
        if self._next() == "<":
            self._take()
            if name.lower() == "struct":
                self.columns()
            else:
                self._type()
                while self._next() == ",":
                    self._take()
                    self._type()
            self._take()
        # What may follow, as (10, 2), NOT NULL and COMMENT 'text', is Spark's to judge.
        depth = 0
        while self._next() and (depth or self._next() not in (",", ">")):
            depth += {"(": 1, ")": -1}.get(self._take(), 0)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        taken = self._next()
        self._at += 1
        return taken


def _alike(word: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {near[0].upper()}?" if near else ""
