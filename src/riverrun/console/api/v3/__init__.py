"""REST v3: topics, settings, records, groups and ACLs in the form of Confluent's REST API v3.

It lets tools that know this form work with riverrun. ``docs/rest.md`` lists what is missing.
"""

from __future__ import annotations

from riverrun.console.api.v3 import acls, clusters, configs, groups, partitions, records, topics

ENDPOINTS = (
    *clusters.ENDPOINTS,
    *topics.ENDPOINTS,
    *configs.ENDPOINTS,
    *partitions.ENDPOINTS,
    *groups.ENDPOINTS,
    *acls.ENDPOINTS,
    *records.ENDPOINTS,
)
