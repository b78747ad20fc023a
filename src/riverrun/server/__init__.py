"""The node: builds the services, listens, and answers requests. ``broker.py`` alone knows all
services.
"""
