"""The pipeline that ``riverrun pipeline init`` writes."""

from __future__ import annotations

_TEMPLATE = """\
# A pipeline of riverrun; docs/pipelines.md explains all fields.
# Check it with `riverrun pipeline validate`, run it with `riverrun pipeline run`.

[pipeline]
name = "{name}"
bootstrap = "{bootstrap}"

[sources.{source}]
topic = "{topic}"
values = "json"                     # json, avro or raw
schema = "infer"                    # found in the first records, or: "id BIGINT, name STRING"
dead_letters = "{topic}.dead-letters"  # where records go that do not fit, with the reason

[transforms.prepared]
sql = "SELECT * FROM {source}"

[sinks.{source}_table]
input = "prepared"
format = "delta"                    # delta, iceberg or parquet
path = "tables/{topic}"
trigger = "5 seconds"

# And to a topic:
# [sinks.{source}_topic]
# input = "prepared"
# topic = "{topic}-prepared"
"""


def template(name: str, topic: str, bootstrap: str) -> str:
    plain = "".join(letter if letter.isalnum() else "_" for letter in topic)
    source = plain if plain[:1].isalpha() else f"t_{plain}"
    return _TEMPLATE.format(name=name, topic=topic, source=source, bootstrap=bootstrap)
