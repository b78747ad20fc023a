"""Recovery: opens the log of a partition after a crash or a clean stop."""
