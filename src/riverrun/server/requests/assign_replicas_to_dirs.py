"""AssignReplicasToDirs, version 0; decided by ``cluster/partitions/assign_replicas_to_dirs.py``.

Served on the controller listener.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.partitions.assign_replicas_to_dirs import assign_replicas_to_dirs
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest
from riverrun.wire.messages.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse


def handle(
    services: NodeServices, context: RequestContext, request: AssignReplicasToDirsRequest
) -> Awaitable[AssignReplicasToDirsResponse]:
    return services.controller.submit(
        lambda image: assign_replicas_to_dirs(services.configs, image, request), is_urgent=True
    )
