"""Brokers and controllers: registration, heartbeats, sessions."""
