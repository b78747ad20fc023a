"""Changes of in-sync replicas on their way to the controller."""
