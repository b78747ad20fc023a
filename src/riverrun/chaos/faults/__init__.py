"""The proxy between nodes and clients, and damage to disks."""
