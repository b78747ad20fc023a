"""What ``riverrun topics create`` prints with --dry-run, its warnings and the names it suggests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from riverrun.admin.topics.admin import factor_warning
from riverrun.admin.topics.placement_preview import preview_topics, tables_of_preview
from riverrun.cli.support.options import warn
from riverrun.cli.support.output import Layout, print_json, print_tables
from riverrun.cli.support.session import run


def print_preview(
    names: Sequence[str],
    shape: tuple[int, int],
    settings: Mapping[str, str],
    bootstrap: str,
    *,
    as_json: bool,
    has_headings: bool,
) -> None:
    """Print the placement of topics of (partitions, replication factor)."""
    partitions, replication_factor = shape
    previews = run(
        bootstrap,
        lambda pool: preview_topics(
            pool,
            names,
            partitions=partitions,
            replication_factor=replication_factor,
            settings=settings,
        ),
    )
    if as_json:
        print_json([preview.described() for preview in previews])
        return
    for preview in previews:
        print_tables(tables_of_preview(preview), Layout(has_headings=has_headings))


def warn_of_factors(factors: Mapping[str, int], settings: Mapping[str, str | None]) -> None:
    """Warn of topics that cannot have as many replicas in sync as their settings say."""
    for name, factor in factors.items():
        warning = factor_warning(name, factor, settings)
        if warning is not None:
            warn(warning)


def topic_setting_names() -> list[str]:
    """The settings that a topic can have."""
    from riverrun.server.settings import declared_settings

    return [declared.topic for declared in declared_settings() if declared.topic is not None]
