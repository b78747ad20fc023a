"""The broker's relation to the active controller: registration, heartbeats, requests."""
