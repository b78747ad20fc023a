"""Pipelines on Spark: from topics and files, through SQL or Python, to tables and topics."""
