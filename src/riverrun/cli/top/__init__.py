"""``riverrun top``: live throughput by topic, node and group."""
