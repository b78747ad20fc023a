"""The lines of the node's own log, also on a full disk."""

import errno
import io
import re

import pytest
import structlog

from riverrun.server import logs


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("format_", ["json", "console"])
def test_line_that_cannot_be_written_is_dropped(format_: str) -> None:
    before = structlog.get_config()
    try:
        logs.configure(format_=format_, level="info", stream=FullDisk())
        structlog.get_logger("test").error("disk full", path="somewhere")
    finally:
        structlog.configure(**before)


def test_log_level_selects_lines() -> None:
    before = structlog.get_config()
    stream = io.StringIO()
    try:
        logs.configure(format_="json", level="info", stream=stream)
        structlog.get_logger("test").warning("shown", number=7)
        structlog.get_logger("test").debug("hidden")
    finally:
        structlog.configure(**before)
    assert '"event": "shown"' in stream.getvalue()
    assert "hidden" not in stream.getvalue()


@pytest.mark.parametrize(
    ("prefixed_node", "line"),
    [
        (None, r"\d{4}-\d\d-\d\dT[\d:.]+Z \[info +\] stopping +node=2 peer=3"),
        (2, r"\d\d:\d\d:\d\d\.\d{3} \[info +\] stopping +peer=3"),
        (7, r"\d\d:\d\d:\d\d\.\d{3} \[info +\] stopping +node=2 peer=3"),
    ],
)
def test_a_file_has_dates_and_a_prefix_replaces_the_node(
    prefixed_node: int | None, line: str
) -> None:
    before = structlog.get_config()
    stream = io.StringIO()
    try:
        logs.configure(format_="console", level="info", stream=stream, prefixed_node=prefixed_node)
        structlog.get_logger("test").info("stopping", node=2, peer=3)
    finally:
        structlog.configure(**before)
    assert re.fullmatch(line, stream.getvalue().strip()), stream.getvalue()
