"""The node's log on a disk that is full."""

import errno
import io

import pytest
import structlog

from riverrun.server import logs


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("format_", ["json", "console"])
def test_a_line_that_cannot_be_written_stops_nothing(format_: str) -> None:
    before = structlog.get_config()
    try:
        logs.configure(format_=format_, level="info", stream=FullDisk())
        structlog.get_logger("test").error("disk full", path="somewhere")
    finally:
        structlog.configure(**before)


def test_lines_are_written() -> None:
    before = structlog.get_config()
    stream = io.StringIO()
    try:
        logs.configure(format_="json", level="info", stream=stream)
        structlog.get_logger("test").warning("said", number=7)
        structlog.get_logger("test").debug("not said")
    finally:
        structlog.configure(**before)
    assert '"event": "said"' in stream.getvalue()
    assert "not said" not in stream.getvalue()
