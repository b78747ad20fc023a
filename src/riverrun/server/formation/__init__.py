"""How a node that has never been in a cluster finds one, or founds one with its seeds."""
