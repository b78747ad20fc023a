"""Audit: logins, denials and administrative changes, in the log and in a topic of the cluster."""
