"""From a TOML or YAML file to a validated ``Pipeline``. Works without Spark.

- ``model``: the values; ``parser``: from a file to these values, with all problems at once.
- ``document``: TOML and YAML with line numbers; ``section``: typed fields of one table.
- ``sql_text``: checks of SQL and column lists that need no Spark.
- ``table_topics``: the pipeline of ``riverrun pipeline tables``.
"""
