"""Logins and access control in a simulated cluster.

users    who logs in, and the settings of nodes that require it
stage    clients with and without rights, and the checks of what they achieved
"""
