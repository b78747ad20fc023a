"""The usable cores: the affinity mask within the quotas of the cgroups."""

import pytest

from riverrun.server.host.cores import usable_cores, within_quotas


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [
        ([], 8),
        (["max 100000\n"], 8),
        (["250000 100000\n"], 2),
        (["50000 100000\n"], 1),
        (["max 100000", "400000 100000"], 4),
        (["1600000 100000"], 8),
        (["", "nonsense"], 8),
    ],
)
def test_quota_limits_the_cores(quotas: list[str], cores: int) -> None:
    assert within_quotas(8, quotas) == cores


def test_this_process_has_a_core() -> None:
    assert usable_cores() >= 1
