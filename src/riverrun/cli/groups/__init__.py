"""`riverrun groups`."""
