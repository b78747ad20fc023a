"""The systemd unit in examples/systemd: valid, and in agreement with what a node does."""

import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from riverrun.cli.start import register
from riverrun.cluster.settings import ControllerSettings
from riverrun.server.main import OPEN_FILES_WANTED, REFUSED

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "examples" / "systemd" / "riverrun.service"
PROGRAM = "/opt/riverrun/bin/riverrun"
EXPOSURE_MAX = 2.0
"""Of `systemd-analyze security`, from 0 (safe) to 10."""


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    parser = RawConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return dict(parser["Service"])


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with the path of a program that exists."""
    program = tmp_path / "riverrun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "riverrun.service"
    copy.write_text(UNIT.read_text().replace(PROGRAM, str(program)))
    return copy


def analyze(*words: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing (apt-get install systemd)")
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_accepts_the_unit(installed: Path) -> None:
    assert analyze("verify", "--man=no", str(installed)).strip() == ""


def test_the_unit_is_hardened(installed: Path) -> None:
    report = analyze("security", "--offline=true", "--no-pager", str(installed))
    level = float(report.partition("exposure level for riverrun.service: ")[2].split()[0])
    assert level <= EXPOSURE_MAX


def test_the_node_reports_to_systemd(service: dict[str, str]) -> None:
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) >= 10
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["RestartPreventExitStatus"] == str(REFUSED)


def test_limits_fit_the_node(service: dict[str, str]) -> None:
    assert int(service["LimitNOFILE"]) >= OPEN_FILES_WANTED
    limit_s = ControllerSettings().controlled_shutdown_timeout_ms / 1000
    assert int(service["TimeoutStopSec"]) >= 2 * limit_s


def test_the_start_command_exists(service: dict[str, str]) -> None:
    from riverrun.cli.support.apps import CommandApp

    program, command, option, config = service["ExecStart"].split()
    app = CommandApp(help="")
    register(app)
    assert program == PROGRAM
    assert command in {one.name for one in app.registered_commands}
    assert (option, config) == ("--config", "/etc/riverrun/node.toml")


def test_files_of_the_node_are_in_its_state_directory(service: dict[str, str]) -> None:
    assert service["ProtectSystem"] == "strict"
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert service["NoNewPrivileges"] == "true"
