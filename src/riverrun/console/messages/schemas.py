"""Payloads by the schemas of a registry, if the cluster declares one.

The registry is asked in a thread, one call at a time: its catalog is not for several threads. A
registry that does not respond leaves payloads as they are, and is not asked again for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from riverrun.console.messages.payloads import DecodedPayload, schema_id_in
from riverrun.console.messages.streams import FoundRecord
from riverrun.ports.aio import LogLimiter
from riverrun.ports.clock import SystemClock
from riverrun.registry.address import parse_registry
from riverrun.registry.catalog import RegistryCatalog
from riverrun.registry.client import RegistryClient
from riverrun.registry.errors import UndecodableValue, UnusableSchema
from riverrun.registry.framing import SchemaId

if TYPE_CHECKING:
    from riverrun.registry.rendering import JsonRenderer

URL: Final = "schema.registry.url"
USER_INFO: Final = "schema.registry.basic.auth.user.info"
"""The names of Confluent's client settings."""
VARIABLE: Final = "RIVERRUN_REGISTRY"
"""As for ``riverrun consume``."""
PREPARE_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS: Final = 30.0
LOG_SECONDS: Final = 60.0
PAYLOADS_MAX: Final = 2000
"""Payloads of one response that are decoded."""

log = structlog.get_logger("riverrun.console")


class RegistryDecoder:
    """``prepare`` decodes the payloads of a response in a thread, ``decoded`` returns them."""

    def __init__(
        self,
        catalog: RegistryCatalog,
        renderer: JsonRenderer,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._renderer = renderer
        self._now = now
        self._turn = asyncio.Lock()
        self._silent_until = 0.0
        self._warnings = LogLimiter(SystemClock(), interval_seconds=LOG_SECONDS)

    async def prepare(self, records: Iterable[FoundRecord]) -> PreparedPayloads:
        payloads = [
            data
            for found in records
            for data in (found.record.key, found.record.value)
            if data is not None and schema_id_in(data) is not None
        ]
        if not payloads or self._now() < self._silent_until:
            return PreparedPayloads({})
        async with self._turn:
            try:
                async with asyncio.timeout(PREPARE_SECONDS_MAX):
                    found = await asyncio.to_thread(self._decode, payloads[:PAYLOADS_MAX])
            except OSError as error:  # RegistryUnavailable and TimeoutError
                self._silent_until = self._now() + PAUSE_SECONDS
                if self._warnings.admit("registry") is not None:
                    log.warning("the schema registry does not respond", error=str(error))
                return PreparedPayloads({})
        return PreparedPayloads(found)

    def _decode(self, payloads: list[bytes]) -> dict[bytes, DecodedPayload]:
        """Waits for the registry. Raises RegistryUnavailable."""
        self._renderer.prepare(payloads)
        found: dict[bytes, DecodedPayload] = {}
        for data in payloads:
            schema_id = schema_id_in(data)
            if data in found or schema_id is None:
                continue
            try:
                text = self._renderer.render(data)
                form = self._catalog.find(SchemaId(schema_id)).format.value.lower()
            except (UndecodableValue, UnusableSchema):
                continue
            found[data] = DecodedPayload("json" if form == "json" else form, text)
        return found


class PreparedPayloads:
    """Decoded payloads of one response."""

    def __init__(self, found: Mapping[bytes, DecodedPayload]) -> None:
        self._found = found

    def decoded(self, data: bytes) -> DecodedPayload | None:
        return self._found.get(data)


def registry_decoder(
    properties: Mapping[str, str], environment: Mapping[str, str]
) -> RegistryDecoder | None:
    """None without a registry, or without the packages that it needs."""
    url = properties.get(URL) or environment.get(VARIABLE)
    if not url:
        return None
    try:
        from riverrun.registry.rendering import JsonRenderer  # noqa: PLC0415 (an extra)
    except ImportError as error:
        log.warning("schemas need an extra: pip install 'riverrun[registry]'", missing=error.name)
        return None
    try:
        address = parse_registry(url, properties.get(USER_INFO))
    except ValueError as error:
        log.warning("the address of the schema registry is invalid", error=str(error))
        return None
    catalog = RegistryCatalog(RegistryClient(address))
    return RegistryDecoder(catalog, JsonRenderer(catalog))
