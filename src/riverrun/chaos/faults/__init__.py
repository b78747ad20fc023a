"""Faults of the network and of disks.

proxy             a TCP proxy in front of every listener, run as its own process
link_faults       which fault applies to which direction of traffic
socket_owners     finds the process behind a connection
network_control   controls the proxy
disks             small file systems, and damage to files
"""
