"""Runs nodes as child processes, for ``riverrun up`` and ``riverrun start --processes``."""
