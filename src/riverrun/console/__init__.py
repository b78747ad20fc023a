"""The web console and its REST API, for one or several Kafka clusters.

It speaks Kafka's protocol alone and acts as the user who logged in, so ACLs decide what a user
sees and may do. A node runs it in a process of its own; ``riverrun console`` serves it for any
cluster.
"""
