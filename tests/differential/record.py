"""Records the responses of Apache Kafka: `python -m tests.differential.record [SCRIPT...]`.

With --check nothing is written. A new run is compared with the recording, which shows responses
that are not deterministic.
"""

import argparse
import tempfile
import time
from pathlib import Path

from tests.differential.compare import mismatches
from tests.differential.run import SETTINGS, load, prepare, run, save
from tests.differential.script import ERAS
from tests.differential.scripts import SCRIPTS, SECURED
from tests.differential.secured import serve_secured
from tests.processes import serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", choices=[*SCRIPTS, *SECURED, []])
    parser.add_argument("--secured", action="store_true", help="run those of secured servers")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--times", action="store_true", help="print how long each script took")
    parser.add_argument("--peer", default="kafka", help="the server to run (default: kafka)")
    options = parser.parse_args()
    wanted = differing = 0
    folder = Path(tempfile.mkdtemp(prefix="riverrun-record-"))
    started = (
        serve_secured(folder, SETTINGS, options.peer)
        if options.secured
        else serve(folder, SETTINGS, peer=options.peer)
    )
    with started as server:
        prepare(server.address)
        for name in options.scripts or (SECURED if options.secured else SCRIPTS):
            began = time.monotonic()
            eras = {era: run(server.address, name, era) for era in ERAS}
            if options.times:
                print(f"{name}: {time.monotonic() - began:.2f} s")
            wanted += sum(map(len, eras.values()))
            for era, rows in eras.items():
                for row in rows:
                    if row["ask"] == "the script could not go on":
                        print(f"{name} [{era}] stopped: {row['answer']}")
            if not options.check:
                save(name, eras)
                continue
            recorded = load(name)
            for era in ERAS:
                for mismatch in mismatches(name, era, recorded[era], eras[era]):
                    differing += 1
                    print(f"{name} {mismatch}")
    print(f"{wanted} answers" + (f", {differing} fields differ" if options.check else " recorded"))


if __name__ == "__main__":
    main()
