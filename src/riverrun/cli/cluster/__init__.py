"""``riverrun cluster``: health, nodes, settings, directories, elections, removal of a broker."""
