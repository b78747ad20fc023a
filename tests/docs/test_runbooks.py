"""The page of runbooks has a section for every alert, and for no other."""

import re
from pathlib import Path

import pytest

from riverrun.cli.generate.alerts import ALERTS
from tests.pages import DOCS
from tests.secure_node import SecureNode

PAGE = (DOCS / "runbooks.md").read_text()
HEADING = re.compile(r"^### (Riverrun\w+)$", re.MULTILINE)
INTERNAL = 3
"""From the client port to the inter-broker port of `riverrun up --secure`."""


def test_every_alert_has_a_runbook() -> None:
    assert sorted(HEADING.findall(PAGE)) == sorted(alert.name for alert in ALERTS)


@pytest.mark.parametrize("name", [alert.name for alert in ALERTS])
def test_a_runbook_says_what_to_check_and_to_do_or_where_it_is_said(name: str) -> None:
    section = PAGE.partition(f"### {name}\n")[2].partition("\n##")[0]
    has_both = "**Check**" in section and "**Remedy**" in section
    assert has_both or "](#" in section or "| remedy |" in section


@pytest.mark.slow
def test_the_certificate_of_a_node_ends_a_lock_out(tmp_path: Path) -> None:
    """The steps of docs/security.md, on a node that forwards the change to the controller."""
    page = (DOCS / "security.md").read_text()
    block = re.search(r"```\n(security\.protocol=SSL\n.*?)```", page, re.DOTALL)
    assert block is not None
    cluster = SecureNode(tmp_path / "data", nodes=3)
    try:
        folder = Path(cluster.security["ca"]).parent
        for node in cluster.told["nodes"]:
            number = node["id"]
            host, _, port = node["client"].rpartition(":")
            text = block[1].replace("node-1.pem", f"node-{number}.pem")
            (folder / "node.properties").write_text(text)
            login = {"RIVERRUN_COMMAND_CONFIG": str(folder / "node.properties")}
            at = ("--bootstrap", f"{host}:{int(port) + INTERNAL}")
            words = ("users", "password", "admin", "--password-file", "-", *at)
            done = cluster.run(*words, given=f"secret-{number}", environment=login)
            assert done.returncode == 0, done.stderr
        new = {"RIVERRUN_SASL_USERNAME": "admin", "RIVERRUN_SASL_PASSWORD": "secret-3"}
        listed = cluster.run("users", "list", environment=new)
        assert listed.returncode == 0, listed.stderr
    finally:
        assert cluster.stop() == 0
