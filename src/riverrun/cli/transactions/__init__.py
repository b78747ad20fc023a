"""``riverrun transactions``: open, ended and hanging transactions of a cluster."""
