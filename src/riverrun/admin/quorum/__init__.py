"""The voters of the metadata quorum."""
