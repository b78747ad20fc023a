"""``riverrun cluster``: health, nodes, and removal of a broker."""
