"""`python -m tests.prepare`: fetches the third-party programs that tests use.

`make test` runs it beside the linters, so that tests do not wait for downloads and for the archive
of Spark's classes. A missing program is not a failure here; its tests report it.
"""

import signal
import sys

from tests.peers import (
    MissingPeer,
    find_kafka,
    find_kafka_applications,
    find_registry,
    outcome,
)
from tests.spark.connector import find_connector
from tests.spark.java import find_archive

if __name__ == "__main__":
    # `make test` stops us when a linter fails; exit normally, so that child processes are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    finders = (find_connector, find_archive, find_kafka, find_kafka_applications, find_registry)
    for find in finders:
        found = outcome(find)
        if isinstance(found, MissingPeer):
            print(f"missing: {found}")
