"""Settings of client quotas: the windows over which their use is measured."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings(Settings):
    """How the use of quotas is measured. The quotas themselves are set with kafka-configs."""

    windows: int = setting(
        11,
        name="quota.window.num",
        at_least=1,
        doc="Windows over which rates are measured. The last one is the current one.",
    )
    window_seconds: int = setting(
        1,
        name="quota.window.size.seconds",
        at_least=1,
        doc="The length of a window of quotas. A client above request_percentage waits at most this"
        " long.",
    )
    controller_windows: int = setting(
        11,
        name="controller.quota.window.num",
        at_least=1,
        doc="Windows whose unused changes are saved for controller_mutation_rate.",
    )
    controller_window_seconds: int = setting(
        1,
        name="controller.quota.window.size.seconds",
        at_least=1,
        doc="The length of a window of controller_mutation_rate.",
    )
