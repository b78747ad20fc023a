"""Transactions on a broker: verification of produced batches, and markers."""
