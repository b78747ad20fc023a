"""Decisions about users and access rights."""
