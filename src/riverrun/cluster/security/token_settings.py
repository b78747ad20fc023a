"""Settings of delegation tokens."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import DAY_MS, HOUR_MS, SettingKind, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenSettings(Settings):
    """Delegation tokens: logins that a user gives to programs which act for it."""

    secret_key: str = setting(
        "",
        name="delegation.token.secret.key",
        kind=SettingKind.PASSWORD,
        doc="The key from which the secrets of tokens derive; the same on all nodes. Empty: there"
        " are no tokens. With another key, all tokens become invalid.",
    )
    lifetime_ms_max: int = setting(
        7 * DAY_MS,
        name="delegation.token.max.lifetime.ms",
        kind=SettingKind.LONG,
        at_least=1,
        doc="A token cannot be renewed beyond this age.",
    )
    expiry_ms: int = setting(
        DAY_MS,
        name="delegation.token.expiry.time.ms",
        kind=SettingKind.LONG,
        at_least=1,
        doc="A token expires after this time, unless it is renewed.",
    )
    check_interval_ms: int = setting(
        HOUR_MS,
        name="delegation.token.expiry.check.interval.ms",
        kind=SettingKind.LONG,
        at_least=1,
        doc="How often the controller removes expired tokens. Nobody can log in with them"
        " meanwhile.",
    )

    @property
    def is_enabled(self) -> bool:
        return bool(self.secret_key)
