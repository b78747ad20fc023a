"""``python -m riverrun.testing.faults.node``: a node whose network and disk can fail.

It takes the arguments of ``python -m riverrun.server``. The node itself is unchanged: its event
loop and its files come from here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from riverrun.server.main import NodeHost, main
from riverrun.testing.faults.control import FaultsFile, answer
from riverrun.testing.faults.disk import FillableDisk, LimitedFiles
from riverrun.testing.faults.network import PartitionedLoop


def host_of(config: Path) -> NodeHost:
    """The loop and files of the node with this settings file."""
    place = FaultsFile(config)
    space = FillableDisk()

    def new_loop() -> PartitionedLoop:
        loop = PartitionedLoop()
        listener = place.listen()

        def apply() -> None:
            faults = place.read()
            space.set_full(faults.is_disk_full)
            loop.set_unreachable(faults.unreachable_ports)

        def reload() -> None:
            apply()
            answer(listener)

        loop.add_reader(listener, reload)
        apply()
        return loop

    return NodeHost(files=LimitedFiles(space), new_loop=new_loop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], host_of(Path(sys.argv[1]))))
