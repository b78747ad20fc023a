"""Checks of a simulated run.

client_checker     acknowledged records, committed offsets and topics stay as clients saw them
metadata_history   the metadata of all nodes is one history
"""
