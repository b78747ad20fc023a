"""``riverrun produce``, ``consume`` and ``dump-log``: records in and out."""
