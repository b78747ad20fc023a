"""A running pipeline: queries, supervision, checkpoints, progress."""
