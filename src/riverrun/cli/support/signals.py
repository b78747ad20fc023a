"""Ends another process by a signal and waits for its end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from riverrun.cli.support.options import FAILED, fail

POLL_SECONDS = 0.05
REPORT_SECONDS = 0.25


def send_and_wait(
    process: int,
    number: signal.Signals,
    wait_seconds: float,
    *,
    is_owner: Callable[[], bool],
    waiting: Callable[[float], None] = lambda _left: None,
) -> bool:
    """Send the signal; returns whether the process ended in time. ``is_owner`` tells whether the
    process id still belongs to the intended process. ``waiting`` is called with the seconds left.
    """
    end = time.monotonic() + wait_seconds
    try:
        if hasattr(os, "pidfd_open"):
            return _send_by_descriptor(process, number, end, is_owner, waiting)
        os.kill(process, number)
        while (left := end - time.monotonic()) > 0:
            time.sleep(POLL_SECONDS)
            waiting(left)
            os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        fail(f"process {process} belongs to another user", FAILED)
    return False


def _send_by_descriptor(
    process: int,
    number: signal.Signals,
    end: float,
    is_owner: Callable[[], bool],
    waiting: Callable[[float], None],
) -> bool:
    """The process id cannot be reused meanwhile.

    The descriptor is readable when the process ends, even if its parent has not collected it yet.
    """
    descriptor = os.pidfd_open(process)
    try:
        if not is_owner():
            return True
        signal.pidfd_send_signal(descriptor, number)
        while True:
            left = end - time.monotonic()
            if select.select([descriptor], [], [], min(max(left, 0), REPORT_SECONDS))[0]:
                return True
            if left <= 0:
                return False
            waiting(left)
    finally:
        os.close(descriptor)
