"""The supervisor behind ``riverrun start --processes``."""
