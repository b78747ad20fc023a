"""Replicas that cannot be believed, or cannot be written: out of service, and back."""
