"""`riverrun users` and `riverrun acls`: who may log in, and what they may do."""
