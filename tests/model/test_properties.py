"""Java's properties files, as `java.util.Properties` reads them."""

import pytest

from riverrun.model.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node.id=1", {"node.id": "1"}),
        ("node.id = 1 ", {"node.id": "1"}),
        ("node.id: 1", {"node.id": "1"}),
        ("node.id 1", {"node.id": "1"}),
        ("  node.id\t=1\r\nlog.dirs=/d", {"node.id": "1", "log.dirs": "/d"}),
        ("# a comment\n! another\n\nnode.id=1", {"node.id": "1"}),
        ("# a comment \\\nnode.id=1", {"node.id": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("alone\nempty=", {"alone": "", "empty": ""}),
        ("listeners=A://:1,\\\n    B://:2", {"listeners": "A://:1,B://:2"}),
        ("a=1,\\\n#2", {"a": "1,#2"}),
        ("a=1,\\\n\nb=2", {"a": "1,", "b": "2"}),
        ("a=ends\\\\\nb=2", {"a": "ends\\", "b": "2"}),
        ("last=1,\\", {"last": "1,"}),
        ("a=x=y:z", {"a": "x=y:z"}),
        (r"a\=b\:c\ d=1", {"a=b:c d": "1"}),
        (r"path=C:\\data\tx\u00e9\q", {"path": "C:\\data\tx\u00e9q"}),
        ("", {}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found
