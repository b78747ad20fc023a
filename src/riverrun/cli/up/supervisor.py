"""The nodes of ``riverrun up``: they start at once, and the others keep running if one ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from riverrun.cli.supervision.node_output import NodeOutput
from riverrun.cli.supervision.processes import NodeLaunch, NodeStart, Processes
from riverrun.cli.up.files import NodeFiles
from riverrun.cli.up.messages import ourselves

READY_SECONDS_MAX: Final = 60.0
AFTER_FAILURE_SECONDS_MAX: Final = 10.0
"""How long the other nodes may take when one could not start; they may depend on it."""
STOP_SECONDS_MAX: Final = 30.0


class Supervisor:
    """All nodes of one cluster on this machine."""

    def __init__(
        self,
        cluster: Sequence[NodeFiles],
        environments: Mapping[int, Mapping[str, str]],
        output: NodeOutput,
        launch: NodeLaunch,
        *,
        is_ephemeral: bool = False,
    ) -> None:
        """``environments`` by node id."""
        self.cluster = cluster
        self.processes = Processes(output, launch)
        self._environments = environments
        self._output = output
        self._is_ephemeral = is_ephemeral

    def start(self) -> None:
        """Start all at once, because they need each other."""
        for node in self.cluster:
            environment = self._environments[node.id]
            self.processes.start(NodeStart(id=node.id, config=node.draft, environment=environment))

    def wait_ready(self) -> tuple[list[NodeFiles], int]:
        """The nodes that are ready, and the exit code of one that could not start, or 0."""
        end = time.monotonic() + READY_SECONDS_MAX
        waiting = list(self.cluster)
        serving: list[NodeFiles] = []
        code = 0
        while waiting and not self.processes.is_stopping:
            left = end - time.monotonic()
            if left <= 0:
                names = ", ".join(str(node.id) for node in waiting)
                late = "node {} is" if len(waiting) == 1 else "nodes {} are"
                self.processes.say(f"{late.format(names)} not ready in time")
                code = code or 1
                break
            self.processes.wait(left)
            for node in [one for one in waiting if not self.processes.is_starting(one.id)]:
                waiting.remove(node)
                if self.processes.is_ready(node.id):
                    node.draft.replace(node.config)
                    serving.append(node)
                    continue
                code = self.processes.exit_code(node.id)
                self._output.report_failure(node.id, self.processes.reason(node.id))
                end = min(end, time.monotonic() + AFTER_FAILURE_SECONDS_MAX)
        serving.sort(key=lambda node: node.id)
        return serving, code

    def missing(self, serving: Sequence[NodeFiles]) -> dict[int, str]:
        """Why each missing node is not ready, in its own words if it logged any."""
        return {
            node.id: self.processes.reason(node.id) or self.processes.described(node.id)
            for node in self.cluster
            if node not in serving
        }

    def watch(self) -> int:
        """Run until stopped (0) or until no node is left (1). Reports nodes that end."""
        alive = [node for node in self.cluster if self.processes.is_running(node.id)]
        while not self.processes.is_stopping:
            self.processes.wait(None)
            for node in list(alive):
                if self.processes.is_running(node.id) or self.processes.is_stopping:
                    continue
                alive.remove(node)
                self.processes.say(
                    f"node {node.id} {self.processes.described(node.id)}; "
                    f"start it again with: {ourselves()} start --config {node.config}"
                )
            if not alive:
                kept = f"; the data stays in {self.cluster[0].data.parent}"
                self.processes.say("all nodes have ended" + ("" if self._is_ephemeral else kept))
                return 1
        return 0

    def stop(self) -> None:
        self.processes.stop([node.id for node in self.cluster], STOP_SECONDS_MAX)
        self.processes.close()
