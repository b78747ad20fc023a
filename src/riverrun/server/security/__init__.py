"""Security of a node: its settings, logins, certificates, rights and audit."""
