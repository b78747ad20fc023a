"""The command line. It talks to a cluster through the Kafka protocol, like any client.

One folder per command group; ``support`` holds what they share. ``main.py`` maps commands to
modules.
"""
