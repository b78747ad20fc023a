"""Access control and quotas for handlers that are tested without a node."""

from __future__ import annotations

from riverrun.metadata.image import Image
from riverrun.ports.clock import SystemClock
from riverrun.ports.metrics import Metrics
from riverrun.server.security.access import AccessControl
from riverrun.server.security.client_quotas import ClientQuotas
from riverrun.server.security.quota_settings import QuotaSettings
from riverrun.server.security.settings import AuthorizationSettings

OPEN_ACCESS = AccessControl(AuthorizationSettings(), Image)
"""Without an authorizer: everything is allowed."""


def no_quotas() -> ClientQuotas:
    return ClientQuotas(QuotaSettings(), clock=SystemClock(), metrics=Metrics())
