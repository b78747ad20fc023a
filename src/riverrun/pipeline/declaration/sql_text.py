"""Checks of SQL and declared columns that need no Spark, which takes seconds to start.

They report only definite errors. Spark finds the others and ends the run with the reason.
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
"""Columns with the origin of a record."""
QUERIES = ("select", "with", "from", "values", "table", "map", "reduce")
"""The words with which a query may start."""
TYPES = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float",
    "real", "double", "date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "string",
    "character", "char", "varchar", "binary", "decimal", "dec", "numeric", "void", "interval",
    "variant", "array", "map", "struct", "object", "geometry", "geography",
)  # fmt: skip


def identifiers_in(sql: str) -> list[str]:
    """All identifiers of a query, without literals and comments, each once."""
    return list(dict.fromkeys(_WORD.findall(_NO_CODE.sub(" ", sql))))


def check_query(sql: str) -> None:
    """Raise ValueError if the text does not start like a query."""
    code = _NO_CODE.sub(" ", sql).strip().lstrip("( \n\t")
    found = _WORD.match(code)
    if found is None or found.group().lower() not in QUERIES:
        word = code.split()[0] if code else sql
        raise ValueError(f"a query cannot start with {word!r}{_suggestion(word, QUERIES)}")


def declared_columns(ddl: str) -> list[str]:
    """The column names in ``id BIGINT, name STRING``. Raises ValueError for an unknown type."""
    tokens = _TOKEN.findall(ddl)
    if [token.lower() for token in tokens[:2]] == ["struct", "<"]:
        tokens = tokens[2:-1]
    return _Columns(tokens).columns()


class _Columns:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def columns(self) -> list[str]:
        """Parse up to the end of the text or of the struct."""
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
            raise ValueError(f"{name!r} is not a type{_suggestion(name, TYPES)}")
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
        # Skip what may follow, such as (10, 2), NOT NULL and COMMENT 'text'. Spark checks it.
        depth = 0
        while self._next() and (depth or self._next() not in (",", ">")):
            depth += {"(": 1, ")": -1}.get(self._take(), 0)

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        taken = self._next()
        self._at += 1
        return taken


def _suggestion(word: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {near[0].upper()}?" if near else ""
