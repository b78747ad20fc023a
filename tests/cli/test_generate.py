"""``riverrun generate``: what it prints, from the declarations of metrics."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from riverrun.admin.cluster.http_listeners import HttpListener, http_listener
from riverrun.cli.generate.alerts import ALERTS, CRITICAL, INFO, WARNING
from riverrun.cli.generate.catalogue import FILE, Catalogue
from riverrun.cli.generate.panels import ROWS
from riverrun.cli.generate.promql import series_names, undeclared
from riverrun.cli.generate.yaml_text import yaml_text
from riverrun.cli.main import build

ROOT = Path(__file__).parents[2]
CATALOGUE = Catalogue.load()
RUNBOOKS = ROOT / "docs" / "runbooks.md"
STRIMZI_MINIMUM = {
    "RiverrunUnderReplicatedPartitions",
    "RiverrunActiveController",
    "RiverrunOfflinePartitions",
    "RiverrunUnderMinIsr",
    "RiverrunOfflineLogDirectory",
    "RiverrunDiskSpace",
    "RiverrunScrapeProblem",
    "RiverrunCertificateExpiration",
    "RiverrunGroupLag",
    "RiverrunNoMessages",
}


def generate(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(build(["generate"]), ["generate", *words])
    assert result.exit_code == code, result.output
    return result.output


def queries(dashboard: Any) -> list[str]:
    """All expressions of a dashboard, also those of its variables."""
    panels = [one for panel in dashboard["panels"] for one in (panel, *panel.get("panels", ()))]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found.append(variable["query"]["query"])
    return found


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "tools" / "generate_docs.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_catalogue_is_up_to_date(generator: ModuleType) -> None:
    assert generator.catalogue() == FILE.read_text(), "run python tools/generate_docs.py"


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("up == 0", ["up"]),
        ('sum by (topic, le) (rate(a_total{api="x{y}"[5m]}[5m])) > 0.5', ["a_total"]),
        ("max without (a) (b_seconds - timestamp(b_seconds)) > 1e3", ["b_seconds"]),
        ("a / on (instance) group_left (version) b offset 5m unless c", ["a", "b", "c"]),
        ('label_values(d{cluster=~"$cluster"}, topic)', ["d", "topic"]),
        ("rate(e_total[$__rate_interval])", ["e_total"]),
    ],
)
def test_names_in_expressions_are_found(expression: str, names: list[str]) -> None:
    assert series_names(expression) == names


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_names_declared_metrics_and_their_labels(alert: Any) -> None:
    assert undeclared(alert.expression, CATALOGUE) == []
    declared = [CATALOGUE.of_series(name) for name in series_names(alert.expression)]
    known = {label for metric in declared if metric for label in metric.labels}
    known |= {"cluster", "instance", "job", "le"}
    for labels in re.findall(r"by \(([^)]*)\)", alert.expression):
        assert set(labels.split(", ")) <= known
    for label in re.findall(r"(\w+)=~?\"", alert.expression):
        assert label in known
    for label in re.findall(r"\$labels\.(\w+)", alert.summary + alert.description):
        assert label in known


def test_alerts_include_the_minimum_and_have_unique_names() -> None:
    names = [alert.name for alert in ALERTS]
    assert set(names) >= STRIMZI_MINIMUM
    assert len(set(names)) == len(names)
    assert {alert.severity for alert in ALERTS} == {CRITICAL, WARNING, INFO}


def test_every_alert_has_a_summary_a_description_and_a_runbook() -> None:
    printed = yaml.safe_load(generate("alerts", "--runbooks", "https://example.org/runbooks"))
    rules = [rule for group in printed["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == [alert.name for alert in ALERTS]
    for rule in rules:
        notes = rule["annotations"]
        assert notes["summary"].endswith(".") and notes["description"].endswith(".")
        assert notes["runbook_url"] == f"https://example.org/runbooks#{rule['alert'].lower()}"


def test_every_alert_has_a_runbook() -> None:
    if not RUNBOOKS.exists():
        pytest.skip("docs/runbooks.md is not written yet")
    headings = re.findall(r"^#+ (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert [alert.name for alert in ALERTS if alert.name not in headings] == []


def test_the_dashboard_shows_every_declared_metric() -> None:
    dashboard = json.loads(generate("grafana", "--title", "My cluster"))
    assert dashboard["title"] == "My cluster"
    shown = {
        metric.name
        for query in queries(dashboard)
        for name in series_names(query)
        if (metric := CATALOGUE.of_series(name)) is not None
    }
    assert shown == set(CATALOGUE.metrics)


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads(generate("grafana"))
    headings = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    assert [row["title"] for row in headings] == [row.title for row in ROWS]
    assert [row["gridPos"]["y"] for row in headings] == sorted(r["gridPos"]["y"] for r in headings)
    numbers: list[int] = []
    for row in [{"panels": dashboard["panels"]}, *headings]:
        cells: set[tuple[int, int]] = set()
        for panel in row["panels"]:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24
            own = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not own & cells, panel["title"]
            cells |= own
            numbers.append(panel["id"])
    assert len(set(numbers)) == len(numbers)


def test_panels_use_the_unit_of_their_metric() -> None:
    dashboard = json.loads(generate("grafana"))
    panels = [one for panel in dashboard["panels"] for one in (panel, *panel.get("panels", ()))]
    units = {
        panel["title"]: panel["fieldConfig"]["defaults"]["unit"]
        for panel in panels
        if panel["type"] != "row"
    }
    assert units["Memory"] == "bytes"
    assert units["Bytes in"] == "Bps"
    assert units["Lag in time"] == "s"
    assert units["Commits"] == "cps"


def test_targets_and_labels_of_the_scrape_jobs() -> None:
    words = ["prometheus", "--targets", "n1:9094,n2:9094", "--targets", "n3:9094"]
    printed = yaml.safe_load(generate(*words, "--cluster", "shop", "--rules", "alerts.yml"))
    [job] = printed["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("riverrun", "/metrics")
    assert job["static_configs"] == [
        {"targets": ["n1:9094", "n2:9094", "n3:9094"], "labels": {"cluster": "shop"}}
    ]
    assert printed["rule_files"] == ["alerts.yml"]


def test_the_names_of_kafka_are_a_second_job() -> None:
    words = ["prometheus", "--targets", "n1:9094", "--kafka-names"]
    paths = [one["metrics_path"] for one in yaml.safe_load(generate(*words))["scrape_configs"]]
    assert paths == ["/metrics", "/metrics/kafka"]
    job = yaml.safe_load(generate(*words, "--partitions"))["scrape_configs"][1]
    assert job["params"] == {"partitions": ["1"]}


@pytest.mark.parametrize("words", [["--targets", "n1"], ["--partitions", "--targets", "n1:1"]])
def test_invalid_options_of_a_scrape_job_are_refused(words: list[str]) -> None:
    generate("prometheus", *words, code=2)


@pytest.mark.parametrize(
    ("client_host", "listener", "found"),
    [
        ("node1", "0.0.0.0:9094", HttpListener(node=1, address="node1:9094")),
        ("node1", ":9094", HttpListener(node=1, address="node1:9094")),
        ("node1", "10.0.0.1:9094", HttpListener(node=1, address="10.0.0.1:9094")),
        ("::1", "[::]:9094", HttpListener(node=1, address="[::1]:9094")),
        ("node1", "127.0.0.1:1", HttpListener(node=1, address="127.0.0.1:1", is_local_only=True)),
        ("localhost", "127.0.0.1:1", HttpListener(node=1, address="127.0.0.1:1")),
        ("node1", "", HttpListener(node=1, address=None)),
    ],
)
def test_the_http_address_of_a_node(client_host: str, listener: str, found: HttpListener) -> None:
    assert http_listener(1, client_host, listener) == found


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": {"c": [], "d": {}}, "e": ["x", {"f": 'say "hi"', "g": None}, ["y"]]},
        ["yes", "no", "1", "1.5", "", "a: b", "- c", "#d", 'it\'s "so"', "tab\there", "zwölf"],
        {"true": True, "on": False, "12": "15s", "path": "/metrics/kafka"},
    ],
)
def test_yaml_is_read_back(value: object) -> None:
    assert yaml.safe_load(yaml_text(value)) == value
