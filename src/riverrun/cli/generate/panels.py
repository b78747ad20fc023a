"""The rows and panels of the dashboard.

Each row begins with chosen panels. All other metrics follow by themselves, in the row that their
name belongs to, so that a new metric has a panel without a change here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from riverrun.cli.generate.catalogue import Catalogue, DeclaredMetric
from riverrun.cli.generate.promql import shown

CLUSTER: Final = 'cluster=~"$cluster"'
VARIABLES: Final = {"topic": 'topic=~"$topic"', "group": 'group=~"$group"'}
"""Matchers for the variables of the dashboard, by label."""
NODE: Final = 'instance=~"$node"'
INSTANCE: Final = "instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One query of a panel."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    doc: str
    unit: str
    curves: tuple[Curve, ...]
    is_number: bool = False
    """Shown as one number instead of a chart."""
    good: tuple[float, float] | None = None
    """A number is green in this range, ``[start, end)``, and red elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardRow:
    title: str
    panels: tuple[Panel, ...]
    is_collapsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelChoice:
    """A chosen panel of one metric."""

    metric: str
    title: str = ""
    by: tuple[str, ...] = (INSTANCE,)
    aggregate: str = "sum"
    unit: str = ""
    matchers: tuple[str, ...] = ()
    is_number: bool = False
    good: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    title: str
    prefixes: tuple[str, ...]
    """Metrics whose names begin with one of these are shown in this row."""
    choices: tuple[PanelChoice, ...]
    extra: tuple[Panel, ...] = field(default=())


def _number(metric: str, title: str, good: tuple[float, float] | None = None) -> PanelChoice:
    return PanelChoice(metric=metric, title=title, by=(), is_number=True, good=good)


NONE: Final = (0, 1)
ONE: Final = (1, 2)


CLOCKS: Final = Panel(
    title="Clock difference to Prometheus",
    doc="The clock of each node minus the time of the scrape.",
    unit="s",
    curves=(
        Curve(
            expression=f"riverrun_clock_seconds{{{CLUSTER}, {NODE}}}"
            f" - timestamp(riverrun_clock_seconds{{{CLUSTER}, {NODE}}})",
            legend="{{instance}}",
        ),
    ),
)
FREE_SPACE: Final = Panel(
    title="Free disk space",
    doc="Share of the disk with the data directory that this node may still use.",
    unit="percentunit",
    curves=(
        Curve(
            expression=f"riverrun_disk_free_bytes{{{CLUSTER}, {NODE}}}"
            f" / riverrun_disk_size_bytes{{{CLUSTER}, {NODE}}}",
            legend="{{instance}}",
        ),
    ),
)

ROWS: Final = (
    RowPlan(
        title="Cluster",
        prefixes=(),
        choices=(
            _number("riverrun_controller_brokers_active", "Brokers"),
            _number("riverrun_controller_brokers_fenced", "Fenced brokers", NONE),
            _number("riverrun_controller_active", "Active controllers", ONE),
            _number("riverrun_controller_offline_partitions", "Offline partitions", NONE),
            _number("riverrun_under_min_isr_partitions", "Under min ISR", NONE),
            _number("riverrun_under_replicated_partitions", "Under-replicated", NONE),
            _number("riverrun_controller_topics", "Topics"),
            _number("riverrun_controller_partitions", "Partitions"),
            PanelChoice(metric="riverrun_topic_bytes_in_total", title="Bytes in", by=("cluster",)),
            PanelChoice(
                metric="riverrun_topic_bytes_out_total", title="Bytes out", by=("cluster",)
            ),
            PanelChoice(
                metric="riverrun_topic_records_in_total", title="Records in", by=("cluster",)
            ),
            PanelChoice(metric="riverrun_build_info", title="Versions", by=("version",)),
        ),
    ),
    RowPlan(
        title="Topics",
        prefixes=("riverrun_topic_",),
        choices=(
            PanelChoice(metric="riverrun_topic_bytes_in_total", title="Bytes in", by=("topic",)),
            PanelChoice(metric="riverrun_topic_bytes_out_total", title="Bytes out", by=("topic",)),
            PanelChoice(
                metric="riverrun_topic_records_in_total", title="Records in", by=("topic",)
            ),
            PanelChoice(
                metric="riverrun_log_size_bytes", title="Size of all replicas", by=("topic",)
            ),
            PanelChoice(
                metric="riverrun_request_seconds",
                title="Produce, 99th percentile",
                matchers=('api="Produce"',),
            ),
        ),
    ),
    RowPlan(
        title="Groups",
        prefixes=("riverrun_group",),
        choices=(
            PanelChoice(metric="riverrun_group_lag_records", title="Lag in records", by=("group",)),
            PanelChoice(
                metric="riverrun_group_lag_seconds",
                title="Lag in time",
                by=("group",),
                aggregate="max",
            ),
        ),
    ),
    RowPlan(
        title="Nodes",
        prefixes=("",),
        choices=(
            PanelChoice(metric="process_cpu_seconds_total", title="CPU", unit="percentunit"),
            PanelChoice(metric="process_resident_memory_bytes", title="Memory"),
            PanelChoice(metric="riverrun_connections", title="Connections"),
            PanelChoice(metric="riverrun_requests_total", title="Requests", by=("api",)),
            PanelChoice(metric="riverrun_request_seconds", title="Requests, 99th percentile"),
            PanelChoice(metric="riverrun_loop_stalls_total", title="Stalls of the event loop"),
        ),
        extra=(CLOCKS,),
    ),
    RowPlan(
        title="Quorum and controller",
        prefixes=("riverrun_quorum_", "riverrun_controller_", "riverrun_metadata_"),
        choices=(
            PanelChoice(metric="riverrun_quorum_leader", title="Leader"),
            PanelChoice(metric="riverrun_quorum_epoch", title="Epoch"),
            PanelChoice(metric="riverrun_quorum_commit_lag", title="Records not committed"),
            PanelChoice(
                metric="riverrun_controller_queue_seconds", title="Commits, 99th percentile"
            ),
        ),
    ),
    RowPlan(
        title="Replication and moves",
        prefixes=(
            "riverrun_isr_",
            "riverrun_at_min_isr",
            "riverrun_under_",
            "riverrun_follower_",
            "riverrun_replica_",
            "riverrun_reassign",
            "riverrun_offline_",
            "riverrun_high_watermark",
        ),
        choices=(
            PanelChoice(metric="riverrun_isr_shrinks_total", title="ISR shrinks"),
            PanelChoice(metric="riverrun_isr_expands_total", title="ISR expands"),
            PanelChoice(metric="riverrun_follower_lag_messages", title="Lag of followers"),
        ),
    ),
    RowPlan(
        title="Disks",
        prefixes=("riverrun_log_", "riverrun_disk_", "riverrun_corrupt_", "riverrun_full_disk_"),
        choices=(
            PanelChoice(metric="riverrun_log_directory_online", title="Data directory online"),
            PanelChoice(metric="riverrun_log_flush_seconds", title="Flushes, 99th percentile"),
            PanelChoice(metric="riverrun_corrupt_replicas", title="Damaged replicas"),
        ),
        extra=(FREE_SPACE,),
    ),
    RowPlan(
        title="Transactions",
        prefixes=("riverrun_transaction", "riverrun_late_transaction"),
        choices=(
            PanelChoice(metric="riverrun_transactions_open", title="Open"),
            PanelChoice(metric="riverrun_transaction_commits_total", title="Commits"),
            PanelChoice(metric="riverrun_transaction_aborts_total", title="Aborts"),
            PanelChoice(metric="riverrun_transaction_oldest_seconds", title="Oldest"),
            PanelChoice(metric="riverrun_late_transaction_partitions", title="Hanging"),
        ),
    ),
    RowPlan(
        title="Security and quotas",
        prefixes=(
            "riverrun_logins_",
            "riverrun_audit_",
            "riverrun_certificate",
            "riverrun_jwks_",
            "riverrun_quota_",
            "riverrun_throttled_",
            "riverrun_connections_refused_",
        ),
        choices=(
            PanelChoice(metric="riverrun_logins_total", title="Logins", by=("mechanism", "result")),
            PanelChoice(
                metric="riverrun_certificate_expiry_seconds",
                title="Time until certificates expire",
                by=(INSTANCE, "of"),
                aggregate="min",
            ),
            PanelChoice(
                metric="riverrun_throttled_requests_total",
                title="Throttled requests",
                by=("quota",),
            ),
            PanelChoice(
                metric="riverrun_connections_refused_total",
                title="Refused connections",
                by=("reason",),
            ),
        ),
    ),
)


def dashboard_rows(catalogue: Catalogue) -> list[DashboardRow]:
    """All rows. Every metric of the catalogue is in one of them."""
    shown_names = {choice.metric for row in ROWS for choice in row.choices}
    rest: dict[str, list[Panel]] = {row.title: [] for row in ROWS}
    for metric in catalogue.metrics.values():
        if metric.name not in shown_names:
            rest[_home(metric.name).title].append(_default_panel(metric))
    return [
        DashboardRow(
            title=row.title,
            panels=(*_chosen_panels(row, catalogue), *row.extra, *rest[row.title]),
            is_collapsed=row is not ROWS[0],
        )
        for row in ROWS
    ]


def _home(name: str) -> RowPlan:
    """The row with the longest prefix of the name. That of the nodes has an empty one."""
    prefixes = {prefix: row for row in ROWS for prefix in row.prefixes}
    return prefixes[max((p for p in prefixes if name.startswith(p)), key=len)]


def _chosen_panels(row: RowPlan, catalogue: Catalogue) -> Iterator[Panel]:
    for choice in row.choices:
        metric = catalogue[choice.metric]
        curve = _curve(metric, choice.by, choice.aggregate, choice.matchers)
        yield Panel(
            title=choice.title or metric.words,
            doc=metric.doc,
            unit=choice.unit or metric.unit,
            curves=(curve,),
            is_number=choice.is_number,
            good=choice.good,
        )


def _default_panel(metric: DeclaredMetric) -> Panel:
    """By node; by the labels of the metric if it has any, but never by partition."""
    by = tuple(label for label in metric.labels if label not in ("partition", "follower"))
    curve = _curve(metric, by or (INSTANCE,), "sum", ())
    return Panel(title=metric.words, doc=metric.doc, unit=metric.unit, curves=(curve,))


def _curve(
    metric: DeclaredMetric, by: Sequence[str], aggregate: str, matchers: Sequence[str]
) -> Curve:
    unknown = set(by) - {*metric.labels, INSTANCE, "cluster"}
    assert not unknown, f"{metric.name} has no labels {unknown}"
    variables = [VARIABLES[label] for label in metric.labels if label in VARIABLES]
    selected = [CLUSTER, NODE, *variables, *matchers]
    return Curve(
        expression=shown(metric, matchers=selected, by=by, aggregate=aggregate),
        legend=" ".join(f"{{{{{label}}}}}" for label in by),
    )
