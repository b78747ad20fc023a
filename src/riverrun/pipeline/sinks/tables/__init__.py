"""Tables that store, in each commit, the offsets of the records that they hold."""
