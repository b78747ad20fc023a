"""From rows to tables, topics and dead letters."""
