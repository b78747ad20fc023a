"""The SASL mechanisms that riverrun serves and speaks."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from riverrun.security.scram import ScramMechanism


class SaslMechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"

    @property
    def scram(self) -> ScramMechanism | None:
        return ScramMechanism.named(self.value)


MECHANISMS: Final = {mechanism.value: mechanism for mechanism in SaslMechanism}
