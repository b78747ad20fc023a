"""Bugs planted on purpose, to prove that the simulation finds them."""
