"""The file with the processes of a cluster, which several threads and processes change."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from riverrun.testing.processes import ClusterFile, ClusterProcesses, NodeEntry

NODES = range(1, 9)
ROUNDS = 20
NO_PROCESS = 10**9
"""Above all process ids."""


def test_process_ids_of_nodes_that_start_at_once_are_all_kept(tmp_path: Path) -> None:
    processes = ClusterProcesses(tmp_path)
    nodes = [NodeEntry(id=node, client="", http="", data="", config="", pid=None) for node in NODES]
    processes._save(ClusterFile(bootstrap="", up_pid=NO_PROCESS, nodes=nodes))
    with ThreadPoolExecutor(len(NODES)) as threads:
        for number in range(ROUNDS):
            wanted = {node: NO_PROCESS + 100 * number + node for node in NODES}
            list(threads.map(processes._set_pid, wanted.keys(), wanted.values()))
            assert {node.id: node.pid for node in processes.state.nodes} == wanted
