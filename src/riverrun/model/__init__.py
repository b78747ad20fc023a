"""Ids, errors, settings and shared names. Imports no other package of riverrun."""
