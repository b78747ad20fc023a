"""Several brokers of one host as one unit: ``riverrun start --processes``."""
