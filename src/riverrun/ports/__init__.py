"""Ports to the outside world: clock, randomness, files and metrics, with their real versions.

The simulation has its own versions of the same protocols. No package above this one can tell them
apart.
"""
