"""``riverrun groups``: list, describe, reset and delete consumer groups."""
