"""`python -m tests.prepare`: fetch the programs of others that tests compare with, before they run.

`make test` does it while it looks at the code, which leaves one core idle, so that downloads and
the archive of Spark's classes take no time of the tests. What cannot be had is no failure here: the
tests that need it say so.
"""

import signal
import sys

from tests.peers import MissingPeer, find_kafka, outcome
from tests.spark.connector import find_connector
from tests.spark.java import find_archive

if __name__ == "__main__":
    # When the code is not as it should be; what was started to fetch something ends with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for find in (find_connector, find_archive, find_kafka):
        found = outcome(find)
        if isinstance(found, MissingPeer):
            print(f"missing: {found}")
