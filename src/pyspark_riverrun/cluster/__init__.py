"""Connections to a cluster, and the requests that planning sends."""
