"""``riverrun generate``: configuration for Prometheus and Grafana."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.generate.alerts import JOB, RUNBOOKS
from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import BOOTSTRAP_DEFAULT, FAILED, USAGE, Bootstrap, fail

if TYPE_CHECKING:
    from riverrun.admin.cluster.http_listeners import HttpListener

Job = Annotated[
    str, typer.Option("--job", metavar="NAME", help="The name of the scrape job in Prometheus.")
]


def register(app: typer.Typer) -> None:
    generate = CommandApp(help="Write configuration for Prometheus and Grafana.")
    generate.command("prometheus")(prometheus)
    generate.command("alerts")(alerts)
    generate.command("grafana")(grafana)
    app.add_typer(generate, name="generate")


def prometheus(
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--targets",
            metavar="HOST:PORT",
            help="HTTP addresses of nodes, separated by commas; repeat it. Without it, the cluster "
            "is asked for those of its brokers.",
        ),
    ] = None,
    has_kafka_names: Annotated[
        bool,
        typer.Option(
            "--kafka-names",
            help="Add a second job that reads the names of Kafka's dashboards, /metrics/kafka.",
        ),
    ] = False,
    has_partitions: Annotated[
        bool,
        typer.Option("--partitions", help="With --kafka-names: the series of single partitions."),
    ] = False,
    rules: Annotated[
        str,
        typer.Option("--rules", metavar="FILE", help="File of alert rules to load.  [none]"),
    ] = "",
    job: Job = JOB,
    cluster: Annotated[
        str,
        typer.Option("--cluster", metavar="NAME", help="The value of the label `cluster`."),
    ] = "main",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Print a configuration of Prometheus that scrapes all nodes.

    Nodes that are controllers only are not known to clients: name them with --targets, together
    with the others.

    \b
    riverrun generate prometheus --rules riverrun-alerts.yml > prometheus.yml
    riverrun generate prometheus --targets node1:9094,node2:9094,node3:9094
    riverrun generate prometheus --kafka-names --partitions
    """
    from riverrun.cli.generate.prometheus import ScrapePlan, prometheus_configuration
    from riverrun.cli.generate.yaml_text import yaml_text

    if has_partitions and not has_kafka_names:
        fail("--partitions belongs to --kafka-names", USAGE)
    plan = ScrapePlan(
        targets=_parsed(targets) if targets else _asked(bootstrap),
        job=job,
        cluster=cluster,
        has_kafka_names=has_kafka_names,
        has_partitions=has_partitions,
        rules=rules,
    )
    print(yaml_text(prometheus_configuration(plan)), end="")


def alerts(
    job: Job = JOB,
    runbooks: Annotated[
        str,
        typer.Option(
            "--runbooks", metavar="URL", help="Where the page of runbooks is, for runbook_url."
        ),
    ] = RUNBOOKS,
) -> None:
    """Print alert rules for Prometheus.

    Each alert has a summary, a description and the address of its runbook.

    \b
    riverrun generate alerts > riverrun-alerts.yml
    promtool check rules riverrun-alerts.yml
    """
    from riverrun.cli.generate.alerts import alert_rules
    from riverrun.cli.generate.yaml_text import yaml_text

    print(yaml_text(alert_rules(job=job, runbooks=runbooks)), end="")


def grafana(
    title: Annotated[str, typer.Option("--title", help="The name of the dashboard.")] = "riverrun",
) -> None:
    """Print a Grafana dashboard as JSON.

    It has rows for the cluster, topics, groups, nodes, the quorum, replication, disks, transactions
    and security, and a panel for every metric. Import it in Grafana, and choose the data source.

    \b
    riverrun generate grafana > riverrun-dashboard.json
    """
    import json

    from riverrun.cli.generate.catalogue import Catalogue
    from riverrun.cli.generate.dashboard import dashboard

    print(json.dumps(dashboard(Catalogue.load(), title=title), indent=2))


def _parsed(texts: Sequence[str]) -> list[str]:
    found = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    for target in found:
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            fail(f"--targets {target}: expected HOST:PORT, for example node1:9094", USAGE)
    return found


def _asked(bootstrap: str) -> list[str]:
    from riverrun.admin.cluster.http_listeners import ask_http_listeners
    from riverrun.cli.support.session import run

    listeners = run(bootstrap, ask_http_listeners)
    for listener in listeners:
        _warn(listener)
    found = [listener.address for listener in listeners if listener.address is not None]
    if not found:
        fail("no broker of this cluster serves metrics; set http.listener", FAILED)
    return found


def _warn(listener: HttpListener) -> None:
    import sys

    if listener.address is None:
        text = "did not respond, or has no http.listener; it is left out"
    elif listener.is_local_only:
        text = f"serves HTTP at {listener.address} only: other machines cannot scrape it"
    else:
        return
    print(f"riverrun: node {listener.node} {text}", file=sys.stderr)
