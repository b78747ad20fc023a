"""`riverrun cluster`."""
