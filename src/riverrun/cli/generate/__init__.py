"""``riverrun generate``: configuration for monitoring, derived from the declared metrics."""
