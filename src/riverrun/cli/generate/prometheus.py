"""The configuration of Prometheus: which nodes it scrapes, and by which names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

METRICS_PATH: Final = "/metrics"
KAFKA_PATH: Final = "/metrics/kafka"
KAFKA_SUFFIX: Final = "-kafka"
SCRAPE_SECONDS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapePlan:
    """What Prometheus reads from which addresses."""

    targets: Sequence[str]
    job: str
    cluster: str
    has_kafka_names: bool = False
    has_partitions: bool = False
    """With the series of single partitions under Kafka's names."""
    rules: str = ""
    """A file of alert rules; empty for none."""


def prometheus_configuration(plan: ScrapePlan) -> dict[str, object]:
    jobs = [_job(plan, plan.job, METRICS_PATH)]
    if plan.has_kafka_names:
        kafka = _job(plan, plan.job + KAFKA_SUFFIX, KAFKA_PATH)
        if plan.has_partitions:
            kafka["params"] = {"partitions": ["1"]}
        jobs.append(kafka)
    interval = f"{SCRAPE_SECONDS}s"
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        **({"rule_files": [plan.rules]} if plan.rules else {}),
        "scrape_configs": jobs,
    }


def _job(plan: ScrapePlan, name: str, path: str) -> dict[str, object]:
    labels = {"cluster": plan.cluster}
    return {
        "job_name": name,
        "metrics_path": path,
        "static_configs": [{"targets": list(plan.targets), "labels": labels}],
    }
