"""`python -m tests.prepare`: fetch the programs of others that tests compare with, before they run.

`make test` does it while it looks at the code, which leaves one core idle, so that downloads and
the archive of Spark's classes take no time of the tests. What cannot be had is no failure here: the
tests that need it say so.
"""

from tests.peers import MissingPeer, find_kafka, outcome
from tests.spark.connector import find_connector
from tests.spark.java import find_archive

if __name__ == "__main__":
    for find in (find_connector, find_archive, find_kafka):
        found = outcome(find)
        if isinstance(found, MissingPeer):
            print(f"missing: {found}")
