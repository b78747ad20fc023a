"""Access control for handlers that are tested without a node."""

from __future__ import annotations

from riverrun.metadata.image import Image
from riverrun.server.security.access import AccessControl
from riverrun.server.security.settings import AuthorizationSettings

OPEN_ACCESS = AccessControl(AuthorizationSettings(), Image)
"""Without an authorizer: everything is allowed."""
