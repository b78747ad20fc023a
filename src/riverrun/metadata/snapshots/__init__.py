"""When snapshots of the metadata are written, and what goes with them."""
