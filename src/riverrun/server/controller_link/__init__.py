"""Requests to the active controller: registration, heartbeats, producer ids."""
