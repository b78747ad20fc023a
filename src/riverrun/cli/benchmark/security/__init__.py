"""Costs of security: TLS, handshakes, authorization, and how exactly quotas are kept."""
