"""Whether all copies of all partitions hold the same, proven by reading them all."""
